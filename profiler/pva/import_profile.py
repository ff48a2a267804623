"""A profile of a real IPU, read with the vendor's ``pva`` and written in our format.

`import_profile` asks only for what docs/libpva.md lists, and treats each part as optional: what an
SDK's object model lacks stays empty and is named in the result. Its argument ``pva`` is the
vendor's module, or ours, which mirrors it (so the tests read our own profiles with it). No file of
a real IPU was available: docs/how-to/real-profiles.md.
"""

from __future__ import annotations

import json
import os
import re
import traceback
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import compress, islice, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from ipuscope.profiler.enums import BodyTask, Direction, PipelinePhase, Purpose, Role
from ipuscope.profiler.errors import ProfileError
from ipuscope.profiler.file import records
from ipuscope.profiler.file.writer import ProfileWriter
from ipuscope.profiler.pva import import_blocks
from ipuscope.profiler.report import open_report

_IPU2_BYTES, _REGION0_SHARE = 638_976, 3  # a third of an MK2's tile is not interleaved [SG]
_NAMES: dict[type[Any], tuple[str, ...]] = {
    records.Op: ("name", "module", "popart_name"),
    records.HostEvent: ("channel", "label"),
    **dict.fromkeys(
        (records.Block, records.ComputeSet, records.Program, records.Step, records.Variable),
        ("name",),
    ),
    records.Run: ("name",),
}
_PLAIN = re.compile(r'"?(true|false|[\d.]*)"?', re.IGNORECASE)  # an option's value
_REMOTE = re.compile(r"remote|/(load|store)/")  # PopART's operators, and our names
_OPTIONS = ("options", "engineOptions", "targetOptions")
MOST_STEPS = 20_000_000  # executed parts of steps, each an object of the vendor's
MOST_OBJECTS = 2_000_000  # runs, liveness steps, operators: 15 times those of GPT-3 on 256 IPUs
_SEND = "If the file is sound, send this line (docs/how-to/real-profiles.md, 'If it fails')"


@dataclass
class Met:
    """The result of an import: rows by table, what the object model lacked, and names if asked."""

    rows: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    types: Counter[str] = field(default_factory=Counter)  # of programs
    sdk: str = ""

    @property
    def words(self) -> list[str]:
        """The report, line by line; no name of the model is in it."""
        return [
            f"Poplar {self.sdk or 'of an unknown version'}",
            *(f"{count:,} rows of {table}" for table, count in self.rows.items()),
            *(f"{count:,} programs of type {name}" for name, count in self.types.most_common()),
            *(f"not there: {name} ({count:,} times)" for name, count in self.missing.items()),
        ]


def import_profile(
    pva: Any,
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    debug: str | os.PathLike[str] | None = None,
    trace: str | os.PathLike[str] | None = None,
    anonymise: bool = False,
) -> Met:
    """Read ``source`` with ``pva``, and write ``path``.

    ``debug``: its debug.cbor, without which there are no operators; ``trace``: its .pvti file.
    ``anonymise``: names become numbers. ProfileError if ``pva`` cannot read it, or ``path`` cannot
    be written.
    """
    try:
        report = pva.openReport(str(source), *([] if debug is None else [str(debug)]))
    except Exception as error:  # whatever the vendor's library raises
        raise ProfileError(
            source, f"{pva.__name__} cannot open it: {error}", "Give the SDK that wrote it"
        ) from error
    writer = None
    try:
        made = _Import(pva, report, source, anonymise)
        with ProfileWriter(path, writer="ipu-report import") as writer:
            for at, rows in enumerate(made.tables()):
                made.count(rows)
                writer.add(rows)
                if not at:  # the machine, which sizes all that follows
                    _sound(writer.partial, source)
            if trace is not None:
                events = list(made.host_events(pva.openTrace(str(trace))))
                made.count(events)
                writer.add(events)
            writer.meta(
                kind="training" if made.training else "inference",
                model="imported" if anonymise else _called(source),
                state="executed" if made.runs else "compiled",
                strategy="imported",
                pipelined=made.pipelined,
                warnings=[f"not in the imported profile: {name}" for name in made.met.missing],
            )
            _sound(writer.partial, source)
            writer.publish()
    except Exception as error:  # whatever an object model leads to that is not as expected
        if writer is not None:
            with suppress(OSError):
                writer.partial.unlink(missing_ok=True)
        if isinstance(error, ProfileError):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        words = (
            f"{pva.__name__} reads what was not expected: {error or type(error).__name__} ({place})"
        )
        raise ProfileError(source, words, _SEND) from error
    return made.met


def _sound(written: Path, source: str | os.PathLike[str]) -> None:
    """Raise ProfileError if the rows are not what every reader relies on."""
    try:
        with open_report(written) as report:
            for record in records.STORED:
                report.file.check(record)
    except ProfileError as error:
        raise ProfileError(source, f"it cannot be imported: {error.problem}", _SEND) from error


def _called(source: str | os.PathLike[str]) -> str:
    """The directory that has the profile, or its training/ or inference/."""
    above = Path(source).absolute().parent
    return above.parent.name if above.name in ("training", "inference") else above.name


class _Import:
    """The rows of a profile as they are read from the vendor's objects."""

    def __init__(
        self, pva: Any, report: Any, source: str | os.PathLike[str], anonymise: bool
    ) -> None:
        self.met = Met(sdk=str(getattr(getattr(report, "poplarVersion", None), "string", "")))
        self.report, self.pva, self.source = report, pva, source
        self._names: dict[str, str] | None = {} if anonymise else None
        self.target = self._target()
        self.ipus, self.tiles = self.target.ipus_per_replica, self.target.tiles_per_ipu
        self.runs = self._all(self._of(report, "execution", None), "runs")
        compiled = self._of(report, "compilation", None)
        self.programs = [one.program for one in self._all(compiled, "livenessProgramSteps")]
        self.keys = [self._key(program) for program in self.programs]
        self.executed = self._executed()
        ran = [bool(parts) for parts in self.executed]  # of others, only that they were
        self.runs, self.executed = ([*compress(of, ran)] for of in (self.runs, self.executed))
        self.ops: list[records.Op] = []
        self.links: list[import_blocks.Links] = []
        # operators that run a program, each after its first step: code may be shared
        self.users: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        self.pipelined = False  # IPUs run forwards and backwards at the same time

    def _of(self, owner: Any, name: str, otherwise: Any) -> Any:
        """An attribute, or ``otherwise`` if this object model lacks it."""
        try:
            return getattr(owner, name)
        except Exception:  # some libraries raise their own for what was not recorded
            self.met.missing[f"{type(owner).__name__}.{name}"] += 1
            return otherwise

    def _all(self, owner: Any, name: str) -> list[Any]:
        """The entries of an attribute, of which there may be many but not without end."""
        entries = list(islice(self._of(owner, name, ()), MOST_OBJECTS + 1))
        if len(entries) > MOST_OBJECTS:
            raise ProfileError(self.source, f"it has more than {MOST_OBJECTS:,} {name}", _SEND)
        return entries

    def count(self, rows: list[Any]) -> None:
        """Count finished rows; if names are to go, a number comes into the place of each."""
        for row in rows:
            self.met.rows[row.table] += 1
            if self._names is not None:
                if isinstance(row, records.Op):
                    row.file = ""
                if isinstance(row, records.Option) and not _PLAIN.fullmatch(row.value):
                    row.value = '"a text"'  # such as a path
                for column in _NAMES.get(type(row), ()):
                    names, own = self._names, getattr(row, column)
                    setattr(row, column, names.setdefault(own, f"name {len(names)}"))

    def _key(self, program: Any) -> Any:
        """What tells programs apart: an id or, as the vendor's compare by identity, themselves."""
        return getattr(program, "_id", program)

    def tables(self) -> Iterator[list[Any]]:
        """Rows of each table; tables that others refer to come first."""
        yield [self.target]
        self._operations()
        names = import_blocks.name_blocks(self.ops, self.links)
        steps, tree, sets = self._steps()
        self.where = import_blocks.stages_of(self.ops, steps, len(names))
        self.again = import_blocks.recomputed(steps, self.ops)
        spent = self._spent(steps)
        traces, bodies = self._traces(steps)
        variables, uses, blocks = self._variables(), list[records.Use](), list[records.Block]()
        if names:
            tensors = import_blocks.Tensors.of(self.links)
            op_at = [_ints(step.op for step in steps if step.ipu == i) for i in range(self.ipus)]
            uses = import_blocks.describe(variables, self.ops, tensors, op_at, self.where)
            blocks = import_blocks.block_rows(names, self.where, self.ops, variables, tensors)
        else:
            self.met.missing["Blocks: neither stated nor numbered in module paths"] += 1
        stages = import_blocks.stage_rows(self._stage_ipus, spent, blocks, variables, self.training)
        yield from ([*self._options()], stages, blocks, self.ops, bodies)
        yield from ([*tree, *steps], sets, variables, uses, traces)

    def _target(self) -> records.Target:
        target = self._of(self._of(self.report, "compilation", None), "target", None)
        ipus, replicas = self._of(target, "numIPUs", 1), self._of(target, "numReplicas", 1)
        own = self._of(target, "ipusPerReplica", ipus // max(1, replicas))
        nbytes = int(self._of(target, "bytesPerTile", _IPU2_BYTES))
        kind = str(getattr(self._of(target, "architecture", ""), "name", "")).lower()
        return records.Target(
            name={"ipu1": "mk1", "ipu2": "mk2", "ipu21": "bow"}.get(kind, kind),
            architecture=kind,
            num_ipus=int(ipus),
            num_replicas=int(replicas),
            ipus_per_replica=int(own),
            tiles_per_ipu=int(self._of(target, "tilesPerIpu", 1472)),
            bytes_per_tile=nbytes,
            region0_bytes=nbytes // _REGION0_SHARE if nbytes == _IPU2_BYTES else nbytes,
            clock_hz=float(self._of(target, "clockFrequency", 1.33e9)),
            workers_per_tile=int(self._of(target, "numWorkerContexts", 6)),
        )

    def _options(self) -> Iterator[records.Option]:
        """The options of the compile and of the execution, if this object model has them.

        No public program reads them: these names are a guess.
        """
        for part, name in product(("compilation", "execution"), _OPTIONS):
            options = getattr(getattr(self.report, part, None), name, None)
            with suppress(TypeError, ValueError):  # not pairs
                for key, value in dict(options or {}).items():
                    yield records.Option(f"{part}.{name}.{key}", json.dumps(str(value)))
        if any(_purpose(one) == Purpose.REMOTE_LOAD for one in self.programs):
            yield records.Option("TensorLocations.locationOptimizer.onChipStorage", "false")
        counts = ("Training.gradientAccumulation", "deviceIterations")
        for name, count in zip(counts[not self.training :], self._turns, strict=False):
            if count:
                yield records.Option(name, json.dumps(count))

    def _executed(self) -> list[list[tuple[Any, int, int, int]]]:
        """For each run, (program, IPU, start, end) on its clock; only the first replica's IPUs.

        Of an external sync, from the moment at which its last IPU arrives: the others wait until
        then, and one alone all the time.
        """
        runs = []
        for run in self.runs:
            parts = []
            for step in self._of(run, "steps", ()):
                key, purpose = self._key(step.program), _purpose(step.program)
                joint = purpose == Purpose.EXTERNAL_SYNC
                own = [
                    (ipu, int(one.activeCycles.cyclesFrom.max), int(one.cycles))
                    for ipu, one in enumerate(islice(step.ipus, self.ipus))
                    if one.cycles
                ]
                there = max((begin for _, begin, _ in own), default=0) if joint else 0
                if joint and len(own) == 1 < self.ipus:
                    there += own[0][2]
                parts += [(key, i, max(begin, there), begin + took) for i, begin, took in own]
                if len(parts) > MOST_STEPS:
                    raise ProfileError(
                        self.source,
                        f"a run has more than {MOST_STEPS:,} executed steps",
                        "Profile fewer steps of the program (executionProfileProgramRunCount)",
                    )
            runs.append(parts)
        return runs

    # -- operators ---

    def _operations(self) -> None:
        analysis = getattr(self.pva, "OperationAnalysis", None)
        try:
            operations = self._all(analysis(self.report), "operations") if analysis else []
        except ProfileError:
            raise
        except Exception:  # without debug.cbor
            operations = []
        if not operations:
            self.met.missing["OperationAnalysis.operations"] += 1
        for operation in operations:
            fields = _fields(getattr(operation, "debugContext", None))
            if fields.get("category") != "op":
                continue
            number = len(self.ops)
            first = int(getattr(operation, "firstStepIndex", 0))
            for key in {self._key(program) for program in operation.programs()}:
                self.users[key].append((first, number))
            place = getattr(operation.debugContext, "location", None)
            aten = str(fields.get("torch_schema", "")).replace("::", ".")
            kind = str(fields.get("opid", ""))
            self.links.append(import_blocks.Links.of(fields))
            self.ops.append(
                records.Op(
                    id=number,
                    name=str(operation.name),
                    aten=aten or kind,
                    direction=import_blocks.direction(fields),
                    block=-1,
                    stage=-1,
                    ipu=0,
                    module=str(fields.get("module", "")),
                    file=str(getattr(place, "fileName", "")),
                    line=max(0, int(getattr(place, "lineNumber", 0) or 0)),
                    forward_op=-1,
                    flops=0,
                    cycles=0,
                    estimated=0,
                    plan="",
                    popart_name=str(operation.name),
                )
            )

    def _ops_of_steps(self) -> list[int]:
        """The operator of each liveness step, -1: none.

        Of those that share a step's program it is the one after which the step is named, else that
        of the next step or of the one before, else the last to begin before.
        """
        users = [sorted(self.users.get(key, [(0, -1)])) for key in self.keys]
        names = [str(getattr(program, "name", "")) for program in self.programs]
        called = defaultdict(set)
        for key, name in zip(self.keys, names, strict=True):
            called[key].add(name)  # one for all, if a program has a name of its own
        ops = [
            some[0][1]
            if len(some) == 1
            else self._named(name, some if len(called[key]) > 1 else [])
            for some, key, name in zip(users, self.keys, names, strict=True)
        ]
        after = [*ops, -1]
        for at in range(len(ops) - 1, -1, -1):
            after[at] = after[at] if ops[at] >= 0 else after[at + 1]
        for at, some in enumerate(users):
            if len(some) > 1 and ops[at] < 0:
                begun = some[max(0, bisect_right(some, (at, len(self.ops))) - 1)][1]
                near = {op for _, op in some} & {ops[at - 1], after[at]}
                ops[at] = after[at] if after[at] in near else ops[at - 1] if near else begun
        return ops

    def _named(self, name: str, users: list[tuple[int, int]]) -> int:
        """The operator whose name the step's name begins with; -1 if none's does."""
        fits = [op for _, op in users if name.startswith(f"{self.ops[op].name}/")]
        fits += [op for _, op in users if name == self.ops[op].name]
        return max(fits, key=lambda op: len(self.ops[op].name), default=-1)

    # -- the program ---

    def _steps(self) -> tuple[list[records.Step], list[records.Program], list[records.ComputeSet]]:
        """A step for each IPU that takes part in a liveness step, with a leaf of its own."""
        ran: dict[Any, dict[int, int]] = {}
        for key, ipu, start, end in (part for run in self.executed for part in run):
            own = ran.setdefault(key, {})
            own[ipu] = min(own.get(ipu, end - start), end - start)
        tree = [records.Program(0, -1, 0, records.SEQUENCE, "program", 1)]
        steps: list[records.Step] = []
        sets: list[records.ComputeSet] = []
        positions = [0] * self.ipus
        self.step_at: list[list[int]] = [[] for _ in range(self.ipus)]  # liveness step of each
        self.steps_of: dict[tuple[Any, int], list[int]] = defaultdict(list)  # in order
        rows = zip(self.programs, self.keys, self._ops_of_steps(), strict=True)
        for at, (program, key, op) in enumerate(rows):
            kind = str(getattr(getattr(program, "type", None), "name", "Unknown"))
            self.met.types[kind] += 1
            name = str(getattr(program, "name", ""))
            planned = self._planned(program, kind)
            cycles = ran.get(key, {})
            here = {i for i in range(self.ipus) if planned[i].any()} | set(cycles)
            for ipu in sorted(here) or range(self.ipus):
                number, leaf = len(steps), len(tree)
                compute = -1
                if kind == records.ON_TILE_EXECUTE:
                    compute = len(sets)
                    sets.append(records.ComputeSet(compute, name, ipu, op, 0))
                tree.append(records.Program(leaf, 0, leaf - 1, _type(kind), name, 1))
                by_tile = planned[ipu] if compute >= 0 else None
                least = int(planned[ipu].max(initial=0))
                steps.append(
                    records.Step(
                        *(number, ipu, positions[ipu], leaf, -1, op, _type(kind), name),
                        *(cycles.get(ipu, least), compute, by_tile, None, None, _purpose(program)),
                    )
                )
                self.steps_of[key, ipu].append(number)
                self.step_at[ipu].append(at)
                positions[ipu] += 1
        return steps, tree, sets

    @property
    def training(self) -> bool:
        """Whether anything runs but a forward."""
        return any(op.direction != Direction.FORWARD for op in self.ops)

    @property
    def _turns(self) -> tuple[int, int]:
        """Micro-batches of a weight update, and updates, in the first run; in inference of it."""
        times: dict[str, Counter[int]] = defaultdict(Counter)
        runs_of = Counter(part[:2] for run in self.executed[:1] for part in run)
        for (key, _), many in runs_of.items():
            if key in self.users:
                users = self.users[key]
                times[self.ops[users[0][1]].direction][many // len(users)] += 1
        # that of most programs; a forward's may be recomputation's, too
        often = {way: some.most_common(1)[0][0] for way, some in times.items()}
        if not self.training:
            return often.get(Direction.FORWARD, 0), 1
        updates = often.get(Direction.UPDATE, 1)
        return often.get(Direction.BACKWARD, 0) // updates, updates

    @property
    def _stage_ipus(self) -> np.ndarray:
        """IPU and stage of each Block; without Blocks a stage an IPU: int64[2, Block or IPU]."""
        each = np.arange(self.ipus)
        return self.where if self.where.size else np.stack([each, each])

    def _stage_of(self, step: records.Step) -> int:
        """The stage of a step's Block; of others, the first one on its IPU (-1: none)."""
        block = self.ops[step.op].block if step.op >= 0 else -1
        if block >= 0 and self.where[0, block] == step.ipu:
            return int(self.where[1, block])
        here = np.flatnonzero(self._stage_ipus[0] == step.ipu)
        return int(self._stage_ipus[1, here[0]]) if len(here) else -1

    def _way(self, step: records.Step) -> str:
        """The direction of a step of an operator or of a stash; "" of others."""
        if step.purpose == Purpose.STASH:
            return Direction.FORWARD
        if step.purpose == Purpose.RESTORE:
            return Direction.RECOMPUTE if self.again else Direction.BACKWARD
        if step.op < 0:
            return ""
        return Direction.RECOMPUTE if step.id in self.again else self.ops[step.op].direction

    def _spent(self, steps: list[records.Step]) -> Counter[tuple[int, str]]:
        """Cycles by stage and direction; adds operators' own cycles, and their IPU and stage."""
        spent: Counter[tuple[int, str]] = Counter()
        for step in steps:
            if way := self._way(step):
                stage = self._stage_of(step)
                spent[stage, way] += step.cycles
                if step.op >= 0 and step.purpose == Purpose.OPERATOR and way != Direction.RECOMPUTE:
                    op = self.ops[step.op]
                    op.cycles += step.cycles
                    op.ipu, op.stage = step.ipu, stage
        return spent

    def _task(self, step: records.Step, before: tuple[str, int]) -> tuple[str, int]:
        """A step's task ("": of no stage) and stage; between two operators, those of the first."""
        if way := self._way(step):
            return way, self._stage_of(step)
        if step.purpose in (Purpose.REMOTE_LOAD, Purpose.REMOTE_STORE):
            return before if before[0] else (Direction.UPDATE, self._stage_of(step))
        if step.purpose in (Purpose.STREAM_IN, Purpose.STREAM_OUT) and len(self.where[0]):
            here = np.flatnonzero(self.where[0] == step.ipu)
            at = 0 if step.purpose == Purpose.STREAM_IN else -1
            return str(step.purpose), int(self.where[1, here[at]]) if len(here) else -1
        inside = step.type == records.DO_EXCHANGE or (
            step.type == records.SYNC and step.purpose != Purpose.EXTERNAL_SYNC
        )
        return before if inside else ("", -1)

    def _planned(self, program: Any, kind: str) -> np.ndarray:
        """The estimated cycles of a program: int64[IPU, tile]; 0 if unknown."""
        owner = program
        if kind == records.ON_TILE_EXECUTE:
            owner = getattr(program, "computeset", None) or self._of(program, "computeSet", None)
        elif "Exchange" not in kind and not kind.startswith("StreamCopy"):
            return np.zeros((self.ipus, self.tiles), dtype=np.int64)
        cycles = np.array(self._of(owner, "estimatedCyclesByTile", ()), dtype=np.int64)
        whole = np.zeros(self.ipus * self.tiles, dtype=np.int64)
        whole[: min(len(cycles), len(whole))] = cycles[: len(whole)]
        return whole.reshape(self.ipus, self.tiles)

    def _traces(self, steps: list[records.Step]) -> tuple[list[Any], list[records.Body]]:
        """The runs, each a trace of one iteration whose bodies are steps without a gap."""
        bodies: list[records.Body] = []
        self.steps = steps
        body_of: dict[Any, int] = {}
        rows: list[Any] = []
        clock = 0
        for number, (run, parts) in enumerate(zip(self.runs, self.executed, strict=True)):
            base = min((start for *_, start, _ in parts), default=0)
            tasks = []
            for ipu in range(self.ipus):
                own = [(s - base, e - base, k) for k, i, s, e in parts if i == ipu]
                tasks += self._tasks(ipu, sorted(own, key=lambda one: one[:2]), bodies, body_of)
            total = max((task[1] for task in tasks), default=0)
            self.pipelined |= _overlap(tasks, bodies)
            self._waits(tasks, total, bodies, body_of)
            tasks.sort(key=lambda task: (task[3], task[0]))
            starts, ends, which, where = (_ints(task[at] for task in tasks) for at in range(4))
            none = np.full(len(tasks), -1, dtype=np.int64)
            rows.append(records.Trace(number, 1, total, starts, ends, which, where, none, none + 1))
            rows.append(records.PipelineCycle(number, 0, PipelinePhase.STEADY, 0, total, 0))
            host = self._of(run, "microseconds", None)
            begin = int(getattr(host, "start", 0))
            name = str(self._of(run, "name", f"run {number}"))
            end = max(begin, int(getattr(host, "end", begin)))
            rows.append(records.Run(number, name, number, clock, begin, end))
            clock += total
        self._never_ran(bodies)
        return rows, bodies

    def _never_ran(self, bodies: list[records.Body]) -> None:
        """Put the steps that never run into a body of their IPU."""
        for ipu in range(self.ipus):
            own = [step for step in self.steps if step.ipu == ipu and step.body < 0]
            lengths = _ints(step.cycles for step in own)
            columns = _ints(step.id for step in own), np.cumsum(lengths) - lengths, BodyTask.COPY
            about = len(bodies), f"IPU {ipu}, never run", ipu, -1, "task", "", int(lengths.sum())
            for step in own:
                step.body = len(bodies)
            if own:
                bodies.append(records.Body(*about, *columns))

    def _tasks(
        self,
        ipu: int,
        parts: list[tuple[int, int, Any]],
        bodies: list[Any],
        body_of: dict[Any, int],
    ) -> list[tuple[int, int, int, int]]:
        """Tasks (start, end, body, IPU): steps of one direction that ran without a wait."""
        tasks, open_steps, until, way = [], list[tuple[int, int]](), 0, ("", -1)
        before = -1  # the step

        def close() -> None:
            if open_steps:
                begin = open_steps[0][1]
                ids, starts = _ints(s for s, _ in open_steps), _ints(t for _, t in open_steps)
                key = ipu, ids.tobytes(), (starts - begin).tobytes(), until - begin, way
                if key not in body_of:
                    body_of[key] = len(bodies)
                    task, stage = BodyTask(way[0] or BodyTask.COPY), way[1]
                    of = way[0] if way[0] in tuple(Direction) else ""
                    about = len(bodies), f"IPU {ipu} {way[0] or 'exchange'}", ipu, stage, "task", of
                    length = until - begin
                    bodies.append(records.Body(*about, length, ids, starts - begin, task))
                    for number, _ in open_steps:
                        one = self.steps[number]
                        one.body = body_of[key] if one.body < 0 else one.body
                tasks.append((begin, until, body_of[key], ipu))
                open_steps.clear()

        for start, end, program in parts:
            alike = self.steps_of.get((program, ipu), [-1])  # a program is several steps
            step = next((one for one in alike if one > before), alike[0])
            if step < 0:
                self.met.missing["an executed program among livenessProgramSteps"] += 1
                continue
            before = step
            start = max(start, until)  # overlapped work of I/O tiles is cut off
            if end <= start:
                continue
            other = self._task(self.steps[step], way if start == until else ("", -1))
            external = self.steps[step].purpose == Purpose.EXTERNAL_SYNC  # ends others' waits
            if start > until or other != way or external:
                close()
            way = other
            open_steps.append((step, start))
            until = end
        close()
        return tasks

    def _waits(
        self, tasks: list[Any], total: int, bodies: list[Any], body_of: dict[Any, int]
    ) -> None:
        """Add a wait in each gap, and before the end."""
        for ipu in range(self.ipus):
            own = sorted(task for task in tasks if task[3] == ipu)
            edges = [(0, 0), *((task[0], task[1]) for task in own), (total, total)]
            for (_, end), (start, _) in pairwise(edges):
                if start > end:
                    if ("idle", ipu) not in body_of:
                        body_of["idle", ipu] = len(bodies)
                        about = len(bodies), f"IPU {ipu} waits", ipu, -1, "idle", "", 0
                        bodies.append(records.Body(*about, _ints(()), _ints(()), BodyTask.IDLE))
                    tasks.append((end, start, body_of["idle", ipu], ipu))

    # -- memory ---

    def _variables(self) -> list[records.Variable]:
        """Lowered variables of a name and lifetime together; else totals by category."""
        lowered = self._of(self._of(self.report, "compilation", None), "loweredVariables", None)
        pieces: dict[tuple[int, str, tuple[tuple[int, int], ...], bool], np.ndarray] = {}
        whole = len(self.programs)
        for tile in range(self.ipus * self.tiles) if lowered is not None else ():
            ipu, at = divmod(tile, self.tiles)
            for one in lowered.forTile(tile):
                every = ((0, whole),) if getattr(one, "alwaysLive", False) else None
                lives = every or tuple((i.start, i.end) for i in one.equivalenceClass.steps)
                own = bool(getattr(one, "hasUnloweredVar", True))
                key = ipu, str(one.name), lives, own
                pieces.setdefault(key, np.zeros(self.tiles, dtype=np.int64))[at] += int(one.bytes)
        if not pieces:
            self.met.missing["loweredVariables (outputLoweredVars was off)"] += 1
            return self._totals()
        rows: list[records.Variable] = []
        at_steps = [np.array(own, dtype=np.int64) for own in self.step_at]
        for (ipu, name, lives, own), by_tile in pieces.items():
            role = Role.ACTIVATION if own else Role.PROGRAM
            for first, last in lives:
                start, stop = np.searchsorted(at_steps[ipu], (first, last)).tolist()
                always = (first, last) == (0, whole)
                lived = always, start, stop
                rows.append(self._variable(len(rows), name, ipu, role, by_tile, *lived))
        return rows

    def _variable(
        self, id: int, name: str, ipu: int, role: Role, by_tile: np.ndarray, *lives: int
    ) -> records.Variable:
        always, start, stop = lives
        return records.Variable(
            *(id, str(name), ipu, "variable", role, -1, -1, -1, "", ""),
            *(int(by_tile.sum()), by_tile, 0, int(always), start, stop),
        )

    def _totals(self) -> list[records.Variable]:
        """The tiles' bytes, always and at their worst step, if no variable is listed."""
        tiles = self._of(self._of(self.report, "compilation", None), "tiles", ())
        sizes = np.zeros((2, self.ipus * self.tiles), dtype=np.int64)
        for at, tile in zip(range(sizes.shape[1]), tiles, strict=False):
            memory = self._of(tile, "memory", None)
            sizes[0, at] = self._of(memory, "alwaysLiveBytes", 0)
            sizes[1, at] = self._of(memory, "notAlwaysLiveBytes", 0)
        rows: list[records.Variable] = []
        names = ("always live", "live at the worst step, as if at all steps")
        for by_ipu, name in zip(sizes.reshape(2, self.ipus, self.tiles), names, strict=True):
            for ipu, by_tile in enumerate(by_ipu):
                count = len(self.step_at[ipu])
                always = name == names[0]
                role = Role.PROGRAM if always else Role.TEMPORARY
                if by_tile.any():
                    lives = always, 0, count
                    rows.append(self._variable(len(rows), name, ipu, role, by_tile, *lives))
        return rows

    def host_events(self, trace: Any) -> Iterator[records.HostEvent]:
        """Events of a .pvti file, each before those inside it."""
        number = 0
        for process in trace.processes:
            for thread in process.threads:
                waiting = [(event, -1) for event in reversed(list(thread.events))]
                while waiting:
                    event, parent = waiting.pop()
                    start = int(event.timestamp)
                    end = start + int(event.duration)
                    yield records.HostEvent(
                        *(number, parent, int(process.pid), int(thread.tid), "imported"),
                        *(str(event.label), start, end),
                    )
                    waiting += [(one, number) for one in reversed(list(event.children()))]
                    number += 1


def _overlap(tasks: list[tuple[int, int, int, int]], bodies: list[records.Body]) -> bool:
    """Whether forwards or backwards (start, end, body, IPU) of several IPUs run at one time."""
    until, where = 0, -1
    for start, end, body, ipu in sorted(tasks):
        if bodies[body].direction in (Direction.FORWARD, Direction.BACKWARD):
            if start < until and ipu != where:
                return True
            until, where = max((until, where), (end, ipu))
    return False


def _ints(values: Iterable[int]) -> np.ndarray:
    return np.array(list(values), dtype=np.int64)


def _type(kind: str) -> str:
    """Our type for one of their programs that is a step."""
    if kind in records.PROGRAM_TYPES:
        return kind
    return records.SYNC if kind.startswith(("Sync", "Sans")) else records.ON_TILE_EXECUTE


def _purpose(program: Any) -> Purpose:
    """The purpose that a program's type and name tell."""
    kind = str(getattr(getattr(program, "type", None), "name", ""))
    name = str(getattr(program, "name", "")).lower()
    if _type(kind) == records.SYNC and "external" in name:
        return Purpose.EXTERNAL_SYNC
    if kind.startswith("StreamCopy"):
        if _REMOTE.search(name):
            return Purpose.REMOTE_STORE if "store" in name else Purpose.REMOTE_LOAD
        return Purpose.STREAM_OUT if "tohost" in name else Purpose.STREAM_IN
    copies = kind == records.GLOBAL_EXCHANGE
    return Purpose.COPY if copies else import_blocks.purpose_of(name, Purpose.OPERATOR)


def _fields(context: Any) -> dict[str, Any]:
    """The fields of a debug context and, for missing ones, of its parents."""
    fields: dict[str, Any] = {}
    waiting, seen = [context], 0
    while waiting and seen < 16:
        one, seen = waiting.pop(0), seen + 1
        try:
            own = json.loads(getattr(one, "json", "") or "{}")
        except ValueError:
            own = {}
        fields = {**own, **fields} if isinstance(own, dict) else fields
        waiting += islice(getattr(one, "parents", ()) or (), 16)
    return fields
