"""Which Blocks an imported profile's operators form, and what the variables are to them.

The vendor's model has no Blocks. They are those that debug contexts state (ours do), or the
numbered parts of module paths, as PopLiner's expression of layers' names [PLN]: of
``encoder.layer.3.attention`` it is ``encoder.layer.3``, if another number has the same path before
it. What runs before the first and after the last of these is a Block too.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ipuscope.profiler.enums import Direction, Purpose, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline import closed_forms

_NUMBERED = (
    re.compile(r"(.*?[A-Za-z_]\w*[./])\d+(?=[./]|$)"),  # encoder.layer.3, before ...
    re.compile(r"(.*?[A-Za-z_])\d+(?=[./]|$)"),  # ... encoder/Layer3
)
_AGAIN = re.compile(r"/\d+$")  # of a tensor with several variables
_CROSSING = (Role.WEIGHT, Role.INPUT, Role.ACTIVATION, Role.GRADIENT)
_UPDATES = re.compile("VarUpdate|Updater|AcclUpdate|Accumulator(Scale|Zero|Update)")  # PopART's


@dataclass(frozen=True)
class Links:
    """What an operator's debug context states: its Block and stage, and tensors by name."""

    block: str = ""
    stage: int = -1  # of a forward operator
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Links:
        """From a context's fields; PopART's stage is an attribute, and ours a field."""
        attributes = fields.get("attributes")
        more = attributes if isinstance(attributes, dict) else {}
        stage = str(fields.get("stage", more.get("__pipeline_stage", "")))
        return cls(
            str(fields.get("block") or ""),
            int(stage) if stage.isdecimal() else -1,
            *(tuple(map(str, fields.get(way) or ())) for way in ("inputs", "outputs")),
        )


def direction(fields: dict[str, Any]) -> Direction:
    """The stated direction, or one by PopART's names of operators of gradients and updates."""
    stated, kind = str(fields.get("direction", "")), str(fields.get("opid", ""))
    if stated in tuple(Direction):
        return Direction(stated)
    if _UPDATES.search(kind):
        return Direction.UPDATE
    backward = kind.endswith("Grad") or kind == "Accumulate"
    return Direction.BACKWARD if backward else Direction.FORWARD


def name_blocks(ops: Sequence[records.Op], links: Sequence[Links]) -> list[str]:
    """Give each operator its Block, in the order of the model; the names. Empty: none is found."""
    forward = [op.id for op in ops if op.direction == Direction.FORWARD]
    forward.sort(key=lambda id: links[id].stage)
    stated = any(one.block for one in links)
    paths = [op.module or _AGAIN.sub("", op.name).rpartition("/")[0] for op in ops]
    parts = [one.block for one in links] if stated else _numbered(paths, forward)
    if not any(parts[id] for id in forward):
        return []
    names: list[str] = list(dict.fromkeys(parts[id] for id in forward if parts[id]))
    if not stated:
        named = [at for at, id in enumerate(forward) if parts[id]]
        before, after = f"before {names[0]}", f"after {names[-1]}"
        for at, id in enumerate(forward):
            rest = before if at < named[0] else after if at > named[-1] else parts[forward[at - 1]]
            parts[id] = parts[id] or rest
        names = list(dict.fromkeys(parts[id] for id in forward))
    number = {name: at for at, name in enumerate(names)}
    made = {name: parts[id] for id in forward for name in links[id].outputs}
    for op in ops:
        if not stated and op.direction != Direction.FORWARD:
            by_path = parts[op.id] if parts[op.id] in number else ""
            parts[op.id] = by_path or _by_inputs(links[op.id], names, made)
        op.block = number.get(parts[op.id], -1)
    return names


def _numbered(paths: Sequence[str], forward: Sequence[int]) -> list[str]:
    """The numbered part of each path whose number is one of several; "" where there is none."""
    for pattern in _NUMBERED:
        found = [pattern.match(path) for path in paths]
        families: dict[str, set[str]] = defaultdict(set)
        for match in (found[id] for id in forward):
            if match:
                families[match[1]].add(match[0])
        several = {stem for stem, members in families.items() if len(members) > 1}
        if several:
            return [one[0] if one and one[1] in several else "" for one in found]
    return [""] * len(paths)


def _by_inputs(own: Links, names: Sequence[str], made: dict[str, str]) -> str:
    """The Block whose forward made most of what an operator reads, or whose weight it reads."""
    readers = Counter(made[one] for one in own.inputs if one in made)
    for tensor in own.inputs:
        readers.update(
            name for name in names if re.search(rf"(^|[./_]){re.escape(name)}[./]", tensor)
        )
    return readers.most_common(1)[0][0] if readers else ""


def recomputed(steps: Iterable[records.Step], ops: Sequence[records.Op]) -> set[int]:
    """Ids of steps that a forward operator runs a second time on its IPU, after others."""
    seen: set[tuple[int, int, str, str]] = set()
    last: dict[int, int] = {}  # operator of each IPU
    back: dict[int, bool] = {}  # it has run before
    again = set()
    for step in steps:
        if step.op < 0 or step.purpose != Purpose.OPERATOR:
            continue
        key = step.ipu, step.op, step.name, step.type
        if last.get(step.ipu) != step.op:
            last[step.ipu], back[step.ipu] = step.op, key in seen
        if back[step.ipu] and key in seen and ops[step.op].direction == Direction.FORWARD:
            again.add(step.id)
        seen.add(key)
    return again


def purpose_of(name: str, otherwise: Purpose) -> Purpose:
    """That of a step that puts a tensor into its stash or takes it out, by the step's name."""
    name = name.lower()
    if name.endswith("/stash") or "stashed___" in name:
        return Purpose.STASH
    return Purpose.RESTORE if name.endswith("/restore") or "restored___" in name else otherwise


def stages_of(ops: Sequence[records.Op], steps: Sequence[records.Step], blocks: int) -> np.ndarray:
    """The IPU and the stage of each Block: int64[2, Block]. A stage is what runs on one IPU."""
    count = 1 + max((step.ipu for step in steps), default=0)
    spent = np.zeros((blocks, count), dtype=np.int64)
    for step in steps:
        if step.op >= 0 and ops[step.op].direction == Direction.FORWARD and ops[step.op].block >= 0:
            spent[ops[step.op].block, step.ipu] += step.cycles
    ipu = spent.argmax(axis=1)
    return np.stack([ipu, np.concatenate([ipu[:1] * 0, np.cumsum(np.diff(ipu) != 0)])])


@dataclass
class Tensors:
    """Tensors by name: the operator that makes each, and those that read it."""

    maker: dict[str, int] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, links: Sequence[Links]) -> Tensors:
        """From what the debug contexts state."""
        made = cls()
        for op, one in enumerate(links):
            for name in one.outputs:
                made.maker.setdefault(name, op)
            for name in one.inputs:
                made.readers[name].append(op)
        return made

    def named(self, variable: str) -> str:
        """The tensor of a variable; "" if it is of none."""
        for name in (variable, _AGAIN.sub("", variable)):
            if name in self.maker or name in self.readers:
                return name
        return ""


def describe(
    rows: Sequence[records.Variable],
    ops: Sequence[records.Op],
    tensors: Tensors,
    op_at: Sequence[np.ndarray],
    where: np.ndarray,
) -> list[records.Use]:
    """Give variables their role, tensor, operator, Block and stage; which operators use them.

    ``op_at``: of each IPU, the operator of each of its steps, -1: none; ``where``: the IPU and the
    stage of each Block, int64[2, Block].
    """
    number: dict[str, int] = {}
    weights: dict[str, int] = {}
    first = dict(zip(where[0, ::-1].tolist(), where[1, ::-1].tolist(), strict=True))
    of_tensor: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in rows:
        if row.role == Role.PROGRAM:
            continue
        stash = purpose_of(row.name, Purpose.OPERATOR) == Purpose.STASH
        name = tensors.named(
            row.name.split("___", 1)[-1].removesuffix("/stash") if stash else row.name
        )
        row.role = Role.STASH if stash else _role(row, name, ops, tensors)
        if name:
            row.tensor = number.setdefault(name, len(number))
            row.op = -1 if stash else tensors.maker.get(name, (*tensors.readers[name], -1)[0])
            of_tensor[name, row.ipu].append(row.id)
        elif not row.always_live and row.start < len(op_at[row.ipu]):
            row.op = int(op_at[row.ipu][row.start])
        maker = tensors.maker.get(name, -1) if stash else row.op
        row.block = ops[maker].block if maker >= 0 and row.role != Role.INPUT else -1
        if row.role != Role.INPUT:
            at_home = row.block >= 0 and where[0, row.block] == row.ipu
            row.stage = int(where[1, row.block]) if at_home else first.get(row.ipu, -1)
        if row.role == Role.WEIGHT:
            weights.setdefault(name, row.tensor)
    for row in rows:
        if row.role == Role.INPUT and row.tensor in weights.values():  # a copy of another IPU's
            row.role = Role.WEIGHT
        if row.role in (Role.ACCUMULATOR, Role.OPTIMISER_STATE):
            of = row.name.split("___", 1)[-1] if "___" in row.name else row.name.rpartition("/")[0]
            row.parameter = weights.get(of, -1)
    stashes = {row.id for row in rows if row.role == Role.STASH}
    return [
        records.Use(op, id)
        for name in number
        for op in sorted({tensors.maker.get(name, -1), *tensors.readers.get(name, ())} - {-1})
        for id in of_tensor[name, ops[op].ipu]
        if id not in stashes
    ]


def _role(row: records.Variable, name: str, ops: Sequence[records.Op], tensors: Tensors) -> Role:
    """What a variable is, by who makes its tensor and who reads it."""
    if not name:
        return Role.TEMPORARY
    maker = tensors.maker.get(name, -1)
    ways = {ops[op].direction for op in tensors.readers.get(name, ())}
    if row.always_live:
        if Direction.FORWARD in ways or not ways:
            return Role.WEIGHT
        return Role.ACCUMULATOR if Direction.BACKWARD in ways else Role.OPTIMISER_STATE
    if maker < 0:  # state that comes from streaming memory is not always live
        none = Role.OPTIMISER_STATE if ways == {Direction.UPDATE} else Role.TEMPORARY
        return Role.INPUT if Direction.FORWARD in ways else none
    made = {"forward": Role.ACTIVATION, "backward": Role.GRADIENT}
    return made.get(ops[maker].direction, Role.TEMPORARY)


def block_rows(
    names: Sequence[str],
    where: np.ndarray,
    ops: Sequence[records.Op],
    variables: Sequence[records.Variable],
    tensors: Tensors,
) -> list[records.Block]:
    """The table of Blocks. ``where``: the IPU and the stage of each, int64[2, Block].

    A cut behind a Block is crossed by what forward operators up to it make and later ones read, by
    weights and inputs that later ones read, and back by what backward ones behind it make for those
    up to it.
    """
    cycles: Counter[tuple[int, str]] = Counter()
    for op in ops:
        cycles[op.block, op.direction] += op.cycles
    copies = np.zeros((2, len(names)), dtype=np.int64)  # forward, back
    inputs, weights = np.zeros((2, len(names)), dtype=np.int64)
    counted = set()
    first = {int(ipu): at for at, ipu in reversed([*enumerate(where[0])])}
    having: dict[int, set[int]] = defaultdict(set)
    for row in variables:
        having[row.tensor].add(first.get(row.ipu, len(names)))
    by_number = {row.tensor: tensors.named(row.name) for row in variables if row.tensor >= 0}
    for row in variables:
        if row.tensor < 0 or row.tensor in counted or row.role not in _CROSSING:
            continue
        counted.add(row.tensor)
        back = row.role == Role.GRADIENT
        way = Direction.BACKWARD if back else Direction.FORWARD
        readers = [ops[op] for op in tensors.readers.get(by_number[row.tensor], ())]
        blocks = [op.block for op in readers if op.direction == way and op.block >= 0]
        if row.role == Role.WEIGHT and row.block >= 0:
            weights[row.block] += row.bytes
        if row.role == Role.INPUT and blocks:
            inputs[min(blocks)] += row.bytes
        if blocks and (row.block >= 0 or row.role == Role.INPUT):
            home = row.block if row.block >= 0 else min(blocks)
            if row.block < 0 and len(having[row.tensor]) > 1:  # it travels: with the first inputs
                home = min(home, *having[row.tensor])
            low, high = (min(blocks), home) if back else (home, max(blocks))
            copies[int(back), low : max(low, high)] += row.bytes
    ways = (Direction.FORWARD, Direction.BACKWARD, Direction.UPDATE)
    return [
        records.Block(
            *(at, name, int(where[1, at]), int(where[0, at])),
            *(cycles[at, way] for way in ways),
            *(int(one[at]) for one in (weights, inputs, *copies)),
        )
        for at, name in enumerate(names)
    ]


def stage_rows(
    where: np.ndarray,
    spent: Counter[tuple[int, str]],
    blocks: Sequence[records.Block],
    variables: Sequence[records.Variable],
    training: bool,
) -> list[records.Stage]:
    """The table of stages; ``spent``: cycles by stage and direction."""
    stashes = Counter[int]()
    ipus = dict(zip(where[1].tolist(), where[0].tolist(), strict=True))
    for row in variables:
        if row.role == Role.STASH:
            stashes.update({k: row.bytes for k, ipu in ipus.items() if ipu == row.ipu})
    rows = []
    for k, ipu in ipus.items():
        own = [block for block in blocks if block.stage == k]
        depth = closed_forms.stash_depth(len(ipus), k) if training and stashes[k] else 0
        again = spent[k, Direction.RECOMPUTE]
        rows.append(
            records.Stage(
                *(k, ipu, spent[k, Direction.FORWARD], spent[k, Direction.BACKWARD] + again),
                *(again, spent[k, Direction.UPDATE], depth, stashes[k]),
                *(sum(block.weight_bytes for block in own), own[-1].copy_bytes if own else 0),
            )
        )
    return rows
