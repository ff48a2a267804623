"""What each client concludes, beside what the profile itself says."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from benchmarks.clients.profiles import Profiles
from ipuscope import profiler
from ipuscope.profiler import pva


@dataclass(frozen=True, slots=True)
class Answer:
    """A client's conclusion and the same value from `ipuscope.profiler.Report`, as text."""

    client: str
    question: str
    concluded: str
    known: str

    @property
    def same(self) -> bool:
        return self.concluded == self.known


def stand_in() -> None:
    """``import pva`` gives `ipuscope.profiler.pva`, as under ``ipu-run``."""
    sys.modules["pva"], sys.modules["pva.pva_core"] = pva, pva.pva_core


def addons(checkout: Path, paths: Profiles) -> Iterable[Answer]:
    """``pva_utils`` of the automatic pipelining: what stages cost, and what fills an IPU."""
    folder = "ipu_tensorflow_addons/keras/experimental/auto_pipeline/utils"
    utils = _load(checkout / folder / "pva_utils.py")
    theirs, ours = pva.openReport(paths.pipeline), profiler.open_report(paths.pipeline)
    client = "ipu_tensorflow_addons, `pva_utils`"
    stages = ours.stages["forward_cycles"]
    stage_cycles = utils.get_pipeline_stage_cycles(theirs)
    slowest = int(np.argmax(stage_cycles))
    yield Answer(client, "cycles of each stage", _list(stage_cycles), _list(stages))
    yield Answer(client, "slowest IPU", str(slowest), str(int(stages.to_numpy().argmax())))
    whole = utils.get_pipeline_stage_cycles(theirs, compute_cycle_only=False)
    cycle = ours.pipeline_cycles(0)
    length = int(cycle.loc[cycle["phase"] == "steady", "cycles"].iloc[0])
    yield Answer(client, "a full pipeline cycle", _list(whole), _list([length] * len(whole)))
    for ipu in range(ours.target.ipus_per_replica):
        used = int(ours.tiles(ipu)["peak"].sum())
        bytes_of = utils.get_total_memory(theirs, ipu)
        yield Answer(client, f"bytes on IPU {ipu}", f"{bytes_of:,}", f"{used:,}")


def reptil(checkout: Path, paths: Profiles) -> Iterable[Answer]:
    """Shares of all tiles' cycles by type of program, including waiting."""
    sys.path.insert(0, str(checkout / "ipu" / "reptil" / "src"))
    theirs = importlib.import_module("reptil").open_report(str(paths.pipeline))
    ours = profiler.open_report(paths.pipeline)
    spent = theirs.cycles.program()
    kinds, tiles = ours.cycle_proportions(0).sum(), ours.target.tiles_per_ipu
    client = "reptil"
    waiting = int(kinds["idle"] + kinds["external sync"] + kinds["sync"]) * tiles
    yield Answer(client, "cycles in syncs, all tiles", f"{spent['Sync']:,}", f"{waiting:,}")
    streams = sum(cycles for name, cycles in spent.items() if name.startswith("StreamCopy"))
    ours_alone = int(_on_tiles(ours, ("StreamCopyBegin", "StreamCopyMid", "StreamCopyEnd")))
    yield Answer(client, "cycles in stream copies", f"{streams:,}", f"{ours_alone:,}")
    compute = int(_on_tiles(ours, ("OnTileExecute",)))
    yield Answer(client, "cycles in vertices", f"{spent['OnTileExecute']:,}", f"{compute:,}")
    memory = theirs.memory.excluding_gaps.total
    used = sum(int(ours.tiles(ipu)["peak"].sum()) for ipu in range(ours.target.ipus_per_replica))
    yield Answer(client, "bytes without gaps", f"{memory:,}", f"{used:,}")


def _on_tiles(report: profiler.Report, types: tuple[str, ...]) -> int:
    """Total cycles that tiles work in the executed steps of some types."""
    steps = report.steps(0)
    total = 0
    for step, rows in steps[steps["type"].isin(types)].groupby("step"):
        vectors = report.step_tiles(int(step))
        if vectors["cycles"] is not None:
            total += int(vectors["cycles"].sum()) * len(rows)
            continue
        moved = [
            vectors[name] > 0 for name in ("bytes_in", "bytes_out") if vectors[name] is not None
        ]
        tiles = int(np.logical_or.reduce(moved).sum()) if moved else report.target.tiles_per_ipu
        total += tiles * int(rows["cycles"].sum())
    return total


def flash_attention(checkout: Path, paths: Profiles) -> Iterable[Answer]:
    """``profile_utils``, which keys what is live by name."""
    utils = _load(checkout / "demo" / "profile_utils.py")
    ours = profiler.open_report(paths.one_ipu)
    live = ours.liveness(0)
    step = int(live["not_always_live"].to_numpy().argmax())
    program = pva.openReport(paths.one_ipu).compilation.livenessProgramSteps
    known = max(one.notAlwaysLiveMemory.bytes for one in program)
    frame = utils.get_step_variables(str(paths.one_ipu), step)
    worst = round(float(frame["MB"].sum()) * 1e6)
    client = "flash-attention-ipu, `profile_utils`"
    yield Answer(client, "live bytes of the worst step", f"{worst:,}", f"{known:,}")


def popliner(checkout: Path, paths: Profiles) -> Iterable[Answer]:
    """Its own checks of a profile, then its total with every operation in a layer."""
    sys.argv = ["popliner"]
    sys.path[:0] = [str(checkout), str(checkout / "tests")]
    logging.getLogger("root").setLevel(logging.ERROR)
    theirs, ours = pva.openReport(paths.one_ipu), profiler.open_report(paths.one_ipu)
    checks = importlib.import_module("test_single_stage")
    try:
        checks.check_single_stage(theirs, {})
        verdict = "passed"
    except AssertionError as error:
        verdict = str(error)
    yield Answer("popliner", "its checks, `check_single_stage`", verdict, "passed")
    arguments = importlib.import_module("popliner.parse_args").get_args(
        ["--layer-name-regex", "^(.)"]
    )
    operations = importlib.import_module("popliner.operation_list").OperationList(theirs, arguments)
    total = importlib.import_module("popliner.greedy_solver").GreedySolver(operations)
    memory = total.get_memory_for_layers()
    variables = ours.variables.groupby("category")["bytes"].sum()
    for question, name, category in (
        ("vertex code", "vertex_code", "vertexCode"),
        ("vertex state", "vertex_state", "vertexInstanceState"),
        ("exchange code", "exchange_code", "internalExchangeCode"),
        ("control code", "control_code", "controlCode"),
    ):
        bytes_of_it, known = int(np.sum(memory[name])), int(variables[category])
        yield Answer("popliner", f"bytes of {question}", f"{bytes_of_it:,}", f"{known:,}")
    bytes_of_it, known = int(np.sum(memory["total_mem"])), int(ours.tiles(0)["peak"].sum())
    yield Answer("popliner", "bytes in all", f"{bytes_of_it:,}", f"{known:,}")


CLIENTS: dict[str, Callable[[Path, Profiles], Iterable[Answer]]] = {
    "addons": addons,
    "reptil": reptil,
    "flash-attention": flash_attention,
    "popliner": popliner,
}


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _list(values: Iterable[int]) -> str:
    return ", ".join(f"{int(value):,}" for value in values)
