"""Jobs behind a real object store: the same values as through XRootD, signatures, loads, refusals."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import numpy
import pytest
import uproot
from cached_software import prepare_cached
from object_store import ObjectStore, keys, store
from storage_alone import run_storage
from worker_bench import READ_TREE

from treehammer.collectors.job_spec import CHECKSUM, ExecutionLimits, InputFile
from treehammer.datasets import doors
from treehammer.datasets.doors import FileObservation, ProbeTarget
from treehammer.datasets.doors.observations import MISSING
from treehammer.testbed import network
from treehammer.testbed.components.xrootd_storage import DATASET_FOLDER, storage_folder

__all__ = ["keys", "store"]

#: A user's own script with a client that only reads by GET.
UPROOT = """
    import json, os, uproot
    url = os.environ["TREEHAMMER_URL"]
    print("opening", url, flush=True)
    assert os.stat(".").st_mode & 0o77 == 0
    with uproot.open(url, handler=uproot.source.http.HTTPSource) as file:
        total = int(file["events"]["n"].array(library="np").sum())
    with open(os.environ["TREEHAMMER_RESULT"], "w") as result:
        json.dump({"format": 1, "extras": {"total": total}}, result)
"""
EVENTS = 50_000


@pytest.fixture(scope="module")
def tree_file(store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> InputFile:
    """A tree in the store."""
    path = tmp_path_factory.mktemp("tree") / "tree.root"
    with uproot.recreate(path) as file:
        numbers = numpy.arange(EVENTS, dtype="i4")
        file["events"] = {"n": numbers, "x": numbers * 0.5}
    content = path.read_bytes()
    store.put("data/tree.root", content)
    url = store.url_of("data/tree.root")
    return InputFile("tree.root", url, len(content), f"{zlib.adler32(content):08x}")


@pytest.mark.root
def test_root_reads_the_same_values_through_both_doors(
    bench: Any, make_spec: Any, store: ObjectStore, tree_file: InputFile, keys: None
) -> None:
    """6.38 reads S3 itself; 6.40 has no class for it, and reads a staged copy."""
    with run_storage(network.PROXY, sites=1) as storage:
        (site,) = storage.box.sites
        path = storage_folder(storage.box, site) / DATASET_FOLDER.lstrip("/") / "tree.root"
        copied = doors.read_file(tree_file.url, tree_file.size, copy_to=path)
        assert copied.adler32 == tree_file.adler32
        path.chmod(0o644)
        (xrootd,) = [door.prefix for door in storage.doors(site) if door.name == "root"]

        def make(position: int, release: str, url: str, access: str = "direct") -> Any:
            file = InputFile("tree.root", url, tree_file.size, tree_file.adler32)
            variant = {"branches": 1.0, "cache_mb": 30, "events": 1.0, "access": access}
            software = {"files": (file,), "tree": "events", "software": prepare_cached(release)}
            return make_spec(position, kind=CHECKSUM, variant=variant, **software)

        ran = bench.run(
            READ_TREE,
            make(1, "6.40.00", f"{xrootd}/tree.root"),
            make(2, "6.38.00", tree_file.url),
            make(3, "6.40.00", store.url_of("data/tree.root", tls=True), "staged"),
            make(4, "6.40.00", tree_file.url),
            limits=ExecutionLimits(300.0, 0),
        )
    *read, unsupported = [record.values for record in ran.records]
    assert [values.get("failure_message") for values in read] == [None] * 3
    assert len({values["value_checksum"] for values in read}) == 1
    assert read[0]["checksum_leaves"] == 2
    assert read[1]["file_url"] == tree_file.url
    assert read[1]["server_version"].startswith("SeaweedFS")
    assert unsupported["failure_kind"] == "not-supported"


def test_script_gets_an_address_that_no_log_and_record_shows(
    bench: Any, make_spec: Any, tree_file: InputFile, keys: None
) -> None:
    metrics = {"total": {"unit": "1", "better": "", "description": ""}}
    ran = bench.run(UPROOT, make_spec(files=(tree_file,)), metrics=metrics)
    (record,) = ran.records
    assert "failure_class" not in record.values, ran.errors
    assert record.extras["total"] == EVENTS * (EVENTS - 1) // 2
    assert record.values["file_url"] == tree_file.url
    assert "X-Amz-Signature=***" in ran.read_log("1-1.out")

    gone = InputFile("gone", f"{tree_file.url}-gone", tree_file.size, tree_file.adler32)
    ran = bench.run(UPROOT, make_spec(files=(gone,)), metrics=metrics)
    assert ran.record_values["failure_class"] == "payload"
    written = [path for path in ran.folder.rglob("*") if path.is_file() and path.suffix != ".py"]
    for path in written:
        assert not re.search(rb"X-Amz-Signature=[0-9a-f]", path.read_bytes()), path


def test_refused_keys_have_their_own_class(
    bench: Any,
    make_spec: Any,
    tree_file: InputFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "keys"
    path.write_text("[default]\naws_access_key_id = tests\naws_secret_access_key = wrong\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    executions = [
        make_spec(1, files=(tree_file,)),
        make_spec(2, files=(tree_file,), variant={"access": "staged"}),
    ]
    direct, staged = (record.values for record in bench.run(UPROOT, *executions).records)
    assert direct["failure_class"] == staged["failure_class"] == "credential"
    assert direct["failure_kind"] == "not-permitted"
    assert "file of S3 keys" in direct["failure_message"]
    assert staged["failure_kind"] == "refused"
    assert "Correct aws_secret_access_key" in staged["failure_message"]


def test_doors_read_write_and_explain(
    store: ObjectStore, tree_file: InputFile, keys: None, tmp_path: Path
) -> None:
    for tls in (False, True):
        url = store.url_of("made/a b.txt", tls=tls)
        (tmp_path / "file").write_bytes(b"content")
        assert doors.write_file(tmp_path / "file", url) == FileObservation(7)
        assert doors.stat_file(url) == FileObservation(7)
        assert doors.read_file(url, 7).adler32 == f"{zlib.adler32(b'content'):08x}"
        probe = doors.probe_door(store.url_of("made", tls=tls), ProbeTarget(), is_local=False)
        assert (probe.problem, probe.server[:9]) == ("", "SeaweedFS")
        assert probe.details.startswith("read 7 bytes of a b.txt at 127.0.0.1")
        assert doors.remove_file(url) == FileObservation()
        assert doors.stat_file(url).failure == MISSING
    observation = doors.probe_door(store.url_of("").rstrip("/"), ProbeTarget(), is_local=False)
    assert observation.details.startswith("read 1 bytes of ready at ")  # of its own files first
