"""Process of a ROOT release that forks for each script; runs in the release's Python.

Loading ROOT and compiling headers take seconds of CPU, most scripts of tests milliseconds. Each
message on the socket, whose descriptor is the first argument, is a request in JSON, sent with the
standard streams of the script. The answers are the script's process id and later its exit code.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys
import tempfile
from dataclasses import replace
from typing import Any

from treehammer_kit import payload_report, root_engine
from treehammer_kit.payload_task import RNTUPLE, TTREE, PayloadTask

MAX_REQUEST_BYTES = 1_000_000
TIME_LIMIT_S = 300

#: Has the JIT emit what any event loop of RDataFrame needs, with the types of the tests' columns.
WARM_UP_FRAME = """
void treehammer_warm_up_frame(const std::string &path)
{
   treehammer::TheAnalysis() = [](treehammer::FramePass &pass) {
      auto kept = pass.frame.Filter([](const int &value) { return value > 0; }, {"n"});
      pass.Keep(kept);
      pass.Book(kept.Histo1D<int>({"n", "", 10, 0., 10.}, "n"));
      pass.Book(kept.Histo1D<float>({"scalar", "", 10, 0., 10.}, "scalar"));
      pass.Book(kept.Histo1D<ROOT::RVec<float>>({"floats", "", 10, 0., 10.}, "floats"));
   };
   treehammer::FrameReader reader;
   reader.Open("warm", path);
   reader.Columns();
   reader.Prepare();
   reader.Run();
   reader.Results();
   reader.Close();
   treehammer::TheAnalysis() = nullptr;
}
"""


def warm_up_payloads(with_frames: bool) -> None:
    """Load ROOT and compile what any payload needs; frames take half of the time."""
    root, _ = root_engine.load_root()
    for format_name in (TTREE, RNTUPLE):
        task = PayloadTask(
            kind="timed",
            tree="events",
            urls=[""],
            adler32s=[""],
            passes=1,
            seed=1,
            branches=1.0,
            cache_bytes=1_000_000,
            events=1.0,
            settings={},
            folder=".",
            format=format_name,
        )
        root_engine.warm_up(root, task, root_engine.select_reader(root, task))
    if with_frames:
        root_engine.compile_header(root, "columns/dataframe.hpp")
        root.gInterpreter.Declare(WARM_UP_FRAME)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "warm.root")
        for write in (root.treehammer.WriteWarmUpNTuple, root.treehammer.WriteWarmUpFile):
            write(path, "warm")
            payload_report.compute_value_hashes(root, replace(task, urls=[path], tree="warm"))
            if with_frames:
                root.treehammer_warm_up_frame(path)


def warm_up_datasets(scripts: str) -> None:
    """Rewrite, measure and hash a small file, so that the JIT emits what these actions need."""
    sys.path.insert(0, scripts)
    import ROOT
    from treehammer_generate import ACTIONS

    root_engine.compile_header(ROOT, "kit.hpp")
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as channel:
        old, new = (os.path.join(folder, f"{name}.root") for name in ("old", "new"))
        ROOT.treehammer.WriteWarmUpFile(old, "warm")
        files = {"paths": [old], "adler32s": [""], "tree": "warm"}
        layout = {"compression": 101, "autoFlush": 100, "basketSize": 32000, "basketMemory": 0}
        layout["acrossClusters"] = False
        target = {"source": old, "path": new, "file_name": "new", "skip_unwritable": True}
        ACTIONS["rewrite"]({**files, **layout, **target}, channel)
        ACTIONS["measure"](files, channel)
        ACTIONS["hashes"](files, channel)


def run_script(request: dict[str, Any], streams: list[int]) -> None:
    """Become the script; never returns."""
    code = 1
    try:
        signal.alarm(TIME_LIMIT_S)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["folder"])
        sys.argv = request["arguments"]
        if sys.argv[0] == "-c":
            exec(sys.argv.pop(1), {"__name__": "__main__"})
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Answer requests until the other end of the socket closes."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    warm_for = sys.argv[2]
    if warm_for == "uproot":
        import awkward  # noqa: F401
        import uproot  # noqa: F401
    elif warm_for in ("loops", "frames"):
        warm_up_payloads(warm_for == "frames")
    else:
        warm_up_datasets(warm_for)
    while True:
        message, streams, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 3)
        if not message:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            requests.close()
            run_script(json.loads(message), streams)
        for stream in streams:
            os.close(stream)
        requests.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        requests.send(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    main()
