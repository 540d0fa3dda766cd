"""Preparation of a payload: set-up, input, page cache, common start, environment and job file."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple
from urllib.parse import urlsplit

from ...job_spec import CHECKSUM, JOB_MARK_VARIABLE, PRIME, ExecutionSpec, InputFile
from ...kit.treehammer_kit.loop_libraries import LIBRARIES_VARIABLE
from ...record import node_needs
from ...record.outcome import ExecutionError
from ...shared_files import local_path, write_atomically
from ...software import providers
from ..probes import credential_checks, page_cache, storage_door
from ..probes.node_check import NodeCheck
from . import input_files, library_builds, node_commands, server_cache
from .execution_record import ExecutionRecord
from .job_context import JobContext, LoadStart
from .payload_addresses import PayloadAddresses, find_addresses, locate_url
from .payload_failures import attribute_to_compiler
from .xrootd_settings import ClientLog, RecorderPlugin, write_root_settings

if TYPE_CHECKING:
    from ...cache_counts import CacheCounter

#: Files in the payload's folder: its job, and the result that it writes.
PAYLOAD_JOB_FILE = "job.json"
RESULT_FILE = "result.json"
#: File that appears when the load that a payload watches has ended.
END_FILE = "load-ended"
#: Folder of staged files in the payload's folder.
INPUT_FOLDER = "input"

#: A longer variable would keep the kernel from starting the payload (MAX_ARG_STRLEN).
_MAX_VARIABLE_CHARACTERS = 120_000
#: An axis in the value of an environment variable.
_AXIS_IN_TEXT = re.compile(r"\{(\w+)\}")


class PayloadPreparation:
    """Steps before the payload of one execution; their values enter its record.

    Args:
        context: state of the job.
        spec: the execution.
        name: its name in logs, and for jobs that start together.
        folder: the payload's folder, which is created.
        record: takes over values and the current phase.

    Attributes:
        command: program and arguments.
        environment: the payload's complete environment.
        files: the files that it reads.
        load_start: start of its load; None for other tests.
        recorder: records its requests; None if they are not recorded.
        client_log: log of its XRootD client; None if it has none, or one of its own.
        has_signatures: whether its job file and environment contain signed addresses.
        cache_counter: counts its reads at the cache behind its door; None if nothing is counted.
        node: what the node has and lacks with its ROOT.
    """

    command: List[str]
    environment: Dict[str, str]
    files: Sequence[InputFile]
    client_log: Optional[ClientLog]
    has_signatures: bool
    cache_counter: "Optional[CacheCounter]"
    node: NodeCheck

    def __init__(
        self,
        context: JobContext,
        spec: ExecutionSpec,
        name: str,
        folder: str,
        record: ExecutionRecord,
    ) -> None:
        self._context = context
        self._spec = spec
        self._name = name
        self._folder = folder
        self._record = record
        self.load_start: Optional[LoadStart] = None
        self.recorder: Optional[RecorderPlugin] = None
        self._payload = context.job.payload_of(spec)
        self._build_folder = library_builds.locate_build(context, spec)
        self._loops_folder = ""
        if library_builds.has_loop(context, spec):
            self._loops_folder = library_builds.locate_base(context, spec)
        if self._payload.record and spec.kind != CHECKSUM:
            self.recorder = RecorderPlugin(folder, context.output, name)

    def perform(self) -> None:
        """Perform all steps.

        Raises:
            ExecutionError: a step failed.
            OSError: the node failed.
        """
        context = self._context
        shutil.rmtree(self._folder, ignore_errors=True)  # left by an interrupted attempt
        os.makedirs(self._folder)
        self._require_node()
        self._require_door()
        with self._timing("setup"):
            setup = providers.setup_software(
                self._spec.software, context.base_env, context.kit, self._visible_folders()
            )
        self.node = context.node.look_with(None if setup.wrapper else setup.env)
        self._record.values["node_lacks"] = self.node.lack_names
        self._build_libraries(setup)
        self._build_loop(setup)
        self._record.phase = "setup"
        door_url = context.job.door_url_of(self._spec)
        distant = context.distance.apply(self._spec, door_url, self._record.values)
        # Before files are staged, which fills the cache.
        state = server_cache.prepare_server_cache(context, self._spec, setup.env, self._name)
        self.cache_counter = self._prime_server_cache(setup)
        self._record.values.update(state)
        spec = self._prepare_inputs(setup, distant)
        # Recorded addresses are the door's own, also where a proxy leads to it.
        self._probe_door(self._spec if spec is distant else spec)
        self._record.phase = "setup"
        node_commands.apply_settings(context, spec, self._name)
        self._record.phase = "open"
        cached = page_cache.prepare_page_cache(spec.files, str(spec.variant.get("cache", "")))
        self._record.values.update(
            client_cache_state=cached.state,
            client_cache_method=cached.method,
            client_cached_fraction=cached.fraction,
        )
        context.signals.raise_if_stopped(self._record.phase)
        self._await_common_start()
        self._record.phase = "payload"
        self.files = spec.files
        addresses = self._find_addresses(spec)
        opened = replace(spec, files=addresses.files)
        variables = {
            **self._payload_environment(opened),
            **self._library_environment(setup),
            **addresses.environment,
        }
        self.client_log = ClientLog.create(
            self._folder, [file.url for file in spec.files], {**setup.env, **variables}
        )
        if self.client_log:
            variables.update(self.client_log.environment)
        self.has_signatures = addresses.are_signed
        command, self.environment = self._compose_command(setup, spec, addresses, variables)
        self.command = [*context.count.command, *command] if context.count else command

    def _require_node(self) -> None:
        """Fail if the node lacks what this execution needs, before anything is tried.

        Raises:
            ExecutionError: class ``software-setup``, kind: the need.
        """
        node, spec, payload = self._context.node, self._spec, self._payload
        needs = [node_needs.DISK]
        if spec.software.provider not in providers.WITHOUT_ROOT:
            needs.append(node_needs.MEMORY)
        if payload.kind == "executable" or payload.build or payload.before:
            needs.append(node_needs.EXEC)
        is_remote = any(local_path(file.url) is None for file in spec.files)
        if is_remote and node_needs.DOOR in node.lacks:
            needs.append(node_needs.NETWORK)
        node.require(*needs)
        if spec.variant.get("access") == "staged":
            node.require_space(self._folder, sum(file.size for file in spec.files))

    def _require_door(self) -> None:
        """Fail if the door does not answer, before a client tries it for minutes.

        A load test measures how a storage fails; a proxy may reach a door that the node does not.

        Raises:
            ExecutionError: it does not; kind ``unreachable``.
        """
        context, spec = self._context, self._spec
        remote = [file.url for file in spec.files if local_path(file.url) is None]
        if not remote or context.job.load is not None:
            return
        self._record.phase = "stage-in" if spec.variant.get("access") == "staged" else "open"
        address = locate_url(remote[0], context.base_env)
        proxy = f"{urlsplit(address).scheme}_proxy"
        if any(context.base_env.get(name) for name in (proxy, proxy.upper(), "all_proxy")):
            return

        def pause(seconds: float) -> None:
            time.sleep(seconds)
            context.signals.raise_if_stopped(self._record.phase)

        context.doors.require_answer(address, self._record.phase, pause)
        self._record.phase = "setup"

    def _compose_command(
        self,
        setup: providers.SoftwareSetup,
        spec: ExecutionSpec,
        addresses: PayloadAddresses,
        variables: Mapping[str, str],
    ) -> Tuple[List[str], Dict[str, str]]:
        """Write what the payload reads at its start; return its command and environment."""
        entry = os.path.join(self._context.locate_payload(spec), self._payload.entry)
        if addresses.are_signed:
            os.chmod(self._folder, 0o700)  # other users of the node must not read the signatures
        self._write_payload_job(replace(spec, files=addresses.files))
        write_root_settings(self._folder, (file.url for file in spec.files))
        environment = {**setup.env, **variables}
        for name in addresses.withheld:
            environment.pop(name, None)
        return setup.build_command(self._payload.kind, entry, variables), environment

    def _prime_server_cache(self, setup: providers.SoftwareSetup) -> "Optional[CacheCounter]":
        """Read what the cache behind the door is to have; return a counter of what it has then."""
        context = self._context
        if not server_cache.is_controlled(context, self._spec):
            return None
        self._record.phase = "open"
        if server_cache.needs_priming(self._spec):
            # Without a proxy that adds a distance: the cache receives the same requests.
            spec = replace(self._spec, kind=PRIME)
            addresses = self._find_addresses(spec)
            variables = {
                **self._payload_environment(replace(spec, files=addresses.files)),
                **self._library_environment(setup),
                **addresses.environment,
                "TREEHAMMER_RESULT": os.path.join(self._folder, "prime.json"),
            }
            command, environment = self._compose_command(setup, spec, addresses, variables)
            server_cache.prime(context, spec, command, environment, self._folder, self._name)
        return server_cache.begin_counting(self._spec)

    def _find_addresses(self, spec: ExecutionSpec) -> PayloadAddresses:
        """Find the addresses that the payload opens; clients of a load sign by themselves."""
        job = self._context.job
        if job.load is not None:
            return PayloadAddresses(spec.files)
        return find_addresses(spec.files, spec.software, self._context.base_env, job.limits.wall_s)

    def _visible_folders(self) -> Dict[str, str]:
        """List the folders, besides the kit, that a payload in a container needs."""
        if self._build_folder:
            os.makedirs(self._build_folder, exist_ok=True)  # as a container expects
        if self._loops_folder:
            os.makedirs(self._loops_folder, exist_ok=True)
        return {
            "work": self._folder,
            "payload": self._context.locate_payload(self._spec),
            **({"build": self._build_folder} if self._build_folder else {}),
            **({"loops": self._loops_folder} if self._loops_folder else {}),
            # Staged files are below the work folder.
            "input": input_files.find_common_folder(self._spec.files) or self._folder,
        }

    def _build_libraries(self, setup: providers.SoftwareSetup) -> None:
        """Build the test's own libraries, unless an earlier execution did."""
        if not self._build_folder:
            return
        self._record.phase = library_builds.BUILD
        is_first = self._build_folder not in self._context.builds
        with self._timing("build") if is_first else nullcontext():
            try:
                library_builds.build_libraries(self._context, self._spec, setup, self._build_folder)
            except ExecutionError as error:
                raise ExecutionError(attribute_to_compiler(error.failure, self.node)) from error

    def _build_loop(self, setup: providers.SoftwareSetup) -> None:
        """Build the payload's loop, unless an earlier execution did."""
        context, spec = self._context, self._spec
        if not self._loops_folder:
            return
        loop = library_builds.find_loop(context, spec)
        if not loop:
            self._write_payload_job(spec)
            variables = {**self._payload_environment(spec), **self._library_environment(setup)}
            with self._timing("build"):
                loop = library_builds.build_loop(context, spec, setup, self._folder, variables)
        if loop.fallback:
            self._record.values["loop_fallback"] = loop.fallback

    @contextmanager
    def _timing(self, step: str) -> Iterator[None]:
        """Add the time of a block to that of the execution's set-up or builds."""
        start, cpu = time.monotonic(), input_files.measure_own_cpu_s()
        try:
            yield
        finally:
            values, wall_name, cpu_name = self._record.values, f"{step}_wall_s", f"{step}_cpu_s"
            values[wall_name] = values.get(wall_name, 0.0) + time.monotonic() - start
            cpu_spent = input_files.measure_own_cpu_s() - cpu
            values[cpu_name] = values.get(cpu_name, 0.0) + cpu_spent

    def _library_environment(self, setup: providers.SoftwareSetup) -> Dict[str, str]:
        build = self._payload.build
        if build is None:
            return {}
        return library_builds.describe_environment(build, self._build_folder, dict(setup.env))

    def _prepare_inputs(self, setup: providers.SoftwareSetup, spec: ExecutionSpec) -> ExecutionSpec:
        """Check the files or stage them; return the execution with the files' final URLs."""
        is_staged = spec.variant.get("access") == "staged"
        self._record.phase = "stage-in" if is_staged else "open"
        input_files.check_sizes(spec.files, self._record.phase)
        if is_staged:
            # Otherwise a bundle's first execution would copy from disk and the others from memory.
            page_cache.prepare_page_cache(spec.files, str(spec.variant.get("cache", "")))
        if any(local_path(file.url) is None for file in self._spec.files):
            credential_checks.resolve_credentials(self._context.base_env, self._context.job_folder)
            credential_checks.check_credentials(self._context.base_env)
        if not is_staged:
            return spec
        signals = self._context.signals
        staged = input_files.stage_files(
            spec.files,
            os.path.join(self._folder, INPUT_FOLDER),
            signals,
            lambda file, target: input_files.fetch_remote_file(
                setup, spec.software, file, target, signals
            ),
        )
        # Loading the software that copies is part of the set-up.
        self._record.values["setup_wall_s"] += staged.software_loading.wall_s
        self._record.values["setup_cpu_s"] += staged.software_loading.cpu_s
        self._record.values.update(
            stagein_wall_s=staged.wall_s, stagein_cpu_s=staged.cpu_s, stagein_bytes=staged.bytes
        )
        return replace(spec, files=staged.files)

    def _probe_door(self, spec: ExecutionSpec) -> None:
        if spec.files:
            first = spec.files[0]
            self._record.values.update(
                file_name=first.name,
                file_url=first.url,
                file_size_bytes=sum(file.size for file in spec.files),
            )
        # Probe the original door, also when the payload reads a staged copy.
        files, door_url = self._spec.files, self._context.job.door_url_of(self._spec)
        address = files[0].url if files else door_url
        if not address:
            return
        cache = locate_url(address, self._context.base_env)
        if cache != address:
            address = cache
            self._record.values["data_server"] = urlsplit(cache).netloc
        reach = storage_door.measure_reachability(address)
        self._record.values.update(address_family=reach.address_family, door_rtt_s=reach.rtt_s)
        if reach.rtt_s is not None:  # a door that does not answer is not queried
            server = storage_door.identify_door_server(address)
            self._record.values.update({k: v for k, v in server.items() if v is not None})

    def _await_common_start(self) -> None:
        if self._context.load is None:
            return
        self._record.phase = "start"
        self.load_start = self._context.load.wait(
            self._name, is_first=self._spec == self._context.job.executions[0]
        )
        self._record.values.update(self.load_start.values())
        self.load_start.require_rest_of_load()

    def _payload_environment(self, spec: ExecutionSpec) -> Dict[str, str]:
        urls = [file.url for file in spec.files]
        env = {
            "TREEHAMMER_JOB": os.path.join(self._folder, PAYLOAD_JOB_FILE),
            "TREEHAMMER_RESULT": os.path.join(self._folder, RESULT_FILE),
            "TREEHAMMER_URL": next(iter(urls), ""),
            "TREEHAMMER_TREE": spec.tree,
            "TREEHAMMER_KIT": self._context.kit,
            "TREEHAMMER_PASSES": str(spec.passes),
            "TREEHAMMER_KIND": spec.kind,
            **node_commands.list_axis_variables(spec.variant),
        }
        if len(lines := "\n".join(urls)) < _MAX_VARIABLE_CHARACTERS:
            env["TREEHAMMER_URLS"] = lines
        loop = library_builds.find_loop(self._context, spec)
        if loop and loop.folder and self._loops_folder:
            env[LIBRARIES_VARIABLE] = loop.folder
        if JOB_MARK_VARIABLE in self._context.base_env:
            env[JOB_MARK_VARIABLE] = self._context.base_env[JOB_MARK_VARIABLE]
        env.update(self._common_start_environment())
        if self.recorder is not None and spec.kind != PRIME:
            env.update(self.recorder.environment)
        env.update(self._declared_environment(node_commands.format_axes(spec.variant)))
        if self._context.count:
            env.update(self._context.count.environment)
        return env

    def _common_start_environment(self) -> Dict[str, str]:
        if self.load_start is None:
            return {}
        load = self.load_start.describe_for_payload()
        return {
            "TREEHAMMER_LOAD_INDEX": str(load["index"]),
            "TREEHAMMER_LOAD_JOBS": str(load["jobs"]),
            "TREEHAMMER_LOAD_START_US": str(load["start_us"] or ""),
        }

    def _declared_environment(self, axes: Mapping[str, str]) -> Dict[str, str]:
        """Return the variables that the test declares, with the values of axes."""
        replacements = {"build": self._build_folder, **axes} if self._build_folder else axes
        return {
            name: _AXIS_IN_TEXT.sub(lambda match: replacements.get(match[1], match[0]), text)
            for name, text in self._payload.environment.items()
        }

    def _write_payload_job(self, spec: ExecutionSpec) -> None:
        payload = self._payload
        built = payload.build.outputs if payload.build else ()
        document = {
            **self._context.job.view_for_payload(spec),
            "libraries": [
                os.path.join(self._build_folder, name) if name in built else name
                for name in payload.libraries
            ],
            "kit": self._context.kit,
        }
        if self._context.count:
            document["counting"] = self._context.count.request
        if self.load_start is not None:
            document["load"] = {
                **self.load_start.describe_for_payload(),
                "end_file": os.path.join(self._folder, END_FILE),
                "folder": f"treehammer-{self._context.job.job_id}-{self._context.attempt}-{self._name}",
            }
        path = os.path.join(self._folder, PAYLOAD_JOB_FILE)
        write_atomically(path, json.dumps(document, indent=1, sort_keys=True))
