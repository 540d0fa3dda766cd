"""Run of an engine: its choice by the task, its time steps as rows of operations, its figures."""

from __future__ import annotations

import resource
import socket
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence
from urllib.parse import urlsplit

from .....collectors.record.operation_steps import (
    CLIENT,
    LoadProgress,
    make_operation_step,
)
from .....collectors.shared_files import local_path
from ..load_driver import LoadTimer
from ..load_figures import Row, summarize_loop, summarize_rows
from ..load_task import GENERATOR, LoadTask
from ..recorder import StepClock
from .engine import Engine, EngineLoad, EngineStep
from .fio_engine import FioEngine
from .oha_engine import OhaEngine
from .xrdreplay_engine import XrdReplayEngine

#: An engine that reaches this share of the ceiling is held back by it.
HELD_SHARE = 0.9
_ENGINES: Mapping[str, Callable[[EngineLoad], Engine]] = {
    engine.name: engine for engine in (FioEngine, OhaEngine, XrdReplayEngine)
}


def read_engine(task: LoadTask) -> str:
    """Return the axis or setting ``engine``: :data:`~.load_task.GENERATOR` or another program.

    Raises:
        PayloadError: an unknown one.
    """
    return task.read_choice("engine", (GENERATOR, *_ENGINES))


class EngineResult(NamedTuple):
    """Rows of operations, the instant at which the engine began, figures, and JSON of its version."""

    rows: List[Dict[str, Any]]
    began_s: float
    figures: Dict[str, float]
    inventory: str


def run_engine(
    load: EngineLoad, steps: StepClock, timer: LoadTimer, progress: str = ""
) -> EngineResult:
    """Perform a load by its engine, from its start on.

    Args:
        load: the load.
        steps: division of time.
        timer: clock of the load.
        progress: file that states the last step while the load runs; '' for none.

    Raises:
        PayloadError: the engine is missing, cannot perform this load, or failed.
    """
    engine = _ENGINES[read_engine(load.task)](load)
    start_s = steps.first * steps.step_s
    while timer.now() < start_s:
        if timer.wait(start_s - timer.now()):
            break
    began_s, cpu_s = timer.now(), _child_cpu_s()
    first = steps.find_step(began_s)

    def report(number: int, part: EngineStep) -> None:
        if progress:
            failed = sum(part.failures.values())
            step = first + number
            LoadProgress(step, part.seconds, part.done, failed, part.bytes).write(progress)

    output = engine.run(timer, report)
    end_s = timer.now()
    cores = (_child_cpu_s() - cpu_s) / max(end_s - began_s, 1e-3)
    rows = [
        _make_row(load, part, first + number, steps.start_us + round(began_s * 1e6), cores)
        for number, part in enumerate(engine.parse(output))
    ]
    return EngineResult(rows, began_s, _summarize(load, rows, began_s, steps), engine.inventory)


def _make_row(
    load: EngineLoad, part: EngineStep, step: int, began_us: int, cores: float
) -> Dict[str, Any]:
    url = load.task.files[0].url
    failed = sum(part.failures.values())
    scheduled = round(load.clients * load.rate_hz * part.seconds)
    is_held = load.is_bounded and part.done + failed >= HELD_SHARE * scheduled
    row = make_operation_step(
        part.latency,
        part.failures,
        side=CLIENT,
        operation=load.operation,
        server=_name_server(url),
        step=step,
        step_start_us=began_us + round(part.start_s * 1e6),
        step_s=max(part.seconds, 1e-3),
        clients=load.clients,
        scheduled=max(scheduled, part.done + failed),
        late=0,
        held=part.done if is_held else 0,
        lateness_max_s=0.0,
        generator_cpu=cores,
        generator_limited=False,
        bytes=part.bytes,
    )
    return {**row, "done": part.done}


def _summarize(
    load: EngineLoad, rows: Sequence[Row], began_s: float, steps: StepClock
) -> Dict[str, float]:
    if load.reads:
        seconds = sum(row["step_s"] for row in rows)
        spans = {load.operation: (began_s, began_s + seconds)}
        figures = summarize_loop(rows, spans, steps.step_s)
    else:
        figures = summarize_rows(rows)
    # Engines do not say how late they were.
    for name in ("late_share", "limited_steps"):
        figures.pop(name)
    return figures


def _child_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _name_server(url: str) -> str:
    is_path = local_path(url) is not None
    return socket.gethostname() if is_path else urlsplit(url).netloc.rpartition("@")[2]
