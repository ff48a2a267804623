"""A pipeline schedule as data: what each rank (IPU) does, in order; its CSV file.

The CSV is that of `torch.distributed.pipelining` [TPP]: a row is a rank, a cell an action such as
``2F0`` (stage, work, micro-batch). Empty cells (a rank that waits) and moves of tensors
(``SEND_F``, ``UNSHARD`` and the like) do not order the work and are left out.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ipuscope.profiler.lazy import cached_property

FORWARD, BACKWARD, INPUTS, WEIGHTS = "F", "B", "I", "W"  # I and W: the two parts of a backward

_ACTION = re.compile(r"(\d{1,6})(F|B|I|W)(\d{1,7})")
_OTHER = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|(SEND|RECV)_[FB])\d*")
_PAIR = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")
MOST_ACTIONS = 500_000  # a simulation of them takes some seconds

Key = tuple[int, str, int]


class Action(NamedTuple):
    """One micro-batch's work of one stage; ``overlaps``: with the next action of its rank."""

    stage: int
    work: str
    micro_batch: int
    overlaps: bool = False

    @property
    def key(self) -> Key:
        """What others wait for: I and B both make the gradients of inputs."""
        return self.stage, BACKWARD if self.work == INPUTS else self.work, self.micro_batch

    def needs(self, last: int) -> list[Key]:
        """What must have run before; ``last``: the last stage."""
        stage, work, number = self.stage, self.work, self.micro_batch
        if work == FORWARD:
            return [(stage - 1, FORWARD, number)] if stage else []
        if work == WEIGHTS:
            return [(stage, BACKWARD, number)]
        later = [(stage + 1, BACKWARD, number)] if stage < last else []
        return [(stage, FORWARD, number), *later]

    def __str__(self) -> str:
        return f"{self.stage}{self.work}{self.micro_batch}"


@dataclass(frozen=True)
class ActionSchedule:
    """The actions of each rank in order.

    ``steps``: the step of each action, if all IPUs meet after every step and the schedule defines
    them; empty: each action runs in the first step that it can.
    """

    name: str
    ranks: tuple[tuple[Action, ...], ...]
    steps: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def actions(self) -> list[Action]:
        """The actions of all ranks."""
        return [action for rank in self.ranks for action in rank]

    @cached_property
    def stages(self) -> int:
        """Number of stages, including those that return to a rank."""
        return max(action.stage for action in self.actions) + 1

    @cached_property
    def micro_batches(self) -> int:
        """Micro-batches of a weight update."""
        return max(action.micro_batch for action in self.actions) + 1

    @cached_property
    def split(self) -> bool:
        """Whether some backward is in two parts."""
        return any(action.work == WEIGHTS for action in self.actions)

    @cached_property
    def ipus(self) -> tuple[int, ...]:
        """The rank of each stage."""
        rank_of = {action.stage: at for at, rank in enumerate(self.ranks) for action in rank}
        return tuple(rank_of[stage] for stage in range(self.stages))

    def on(self, ipus: Sequence[int]) -> ActionSchedule:
        """With the stages, each a rank, on these IPUs, which may have several.

        In one step, an IPU runs forwards before backwards, and backwards from the last stage on.
        """
        if tuple(ipus) == tuple(range(len(ipus))):
            return self
        rows: list[list[tuple[int, bool, int, Action]]] = [[] for _ in range(max(ipus) + 1)]
        for ipu, rank, steps in zip(ipus, self.ranks, self.steps, strict=True):
            for action, step in zip(rank, steps, strict=True):
                back = action.work != FORWARD
                rows[ipu].append((step, back, -action.stage if back else action.stage, action))
        ordered = [sorted(row) for row in rows]
        return ActionSchedule(
            self.name,
            tuple(tuple(action for *_, action in row) for row in ordered),
            tuple(tuple(step for step, *_ in row) for row in ordered),
        )

    def runnable(self) -> list[tuple[int, int]]:
        """(rank, position) of all actions in an order in which each finds what it waits for.

        ValueError if ranks wait for each other, or an action is missing or occurs twice.
        """
        self._check()
        last, order, done = self.stages - 1, [], set()
        at, waits = [0] * len(self.ranks), dict[Key, list[int]]()
        ready = list(range(len(self.ranks)))
        while ready:
            rank = ready.pop()
            while at[rank] < len(self.ranks[rank]):
                action = self.ranks[rank][at[rank]]
                missing = next((one for one in action.needs(last) if one not in done), None)
                if missing is not None:
                    waits.setdefault(missing, []).append(rank)
                    break
                order.append((rank, at[rank]))
                at[rank] += 1
                done.add(action.key)
                ready += waits.pop(action.key, [])
        if waits:
            stuck = "; ".join(
                f"rank {rank} at {self.ranks[rank][at[rank]]} for {Action(*key)}"
                for key, ranks in waits.items()
                for rank in ranks
            )
            raise ValueError(f"{self.name}: the ranks wait for each other: {stuck}")
        return order

    def _check(self) -> None:
        keys = [action[:3] for action in self.actions]
        present = set(keys)
        if len(present) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"{self.name}: {Action(*twice)} occurs twice")
        ranks: dict[int, set[int]] = {}
        for rank, actions in enumerate(self.ranks):
            for action in actions:
                ranks.setdefault(action.stage, set()).add(rank)
        for stage in range(self.stages):
            if len(ranks.get(stage, ())) != 1:
                raise ValueError(
                    f"{self.name}: stage {stage} is on ranks {sorted(ranks.get(stage, ()))}: a"
                    " stage is on one"
                )
            for number in range(self.micro_batches):
                parts = [work for work in "FBIW" if (stage, work, number) in present]
                if "".join(parts) not in ("FB", "FIW"):
                    raise ValueError(
                        f"{self.name}: of micro-batch {number} stage {stage} runs"
                        f" {', '.join(parts) or 'nothing'}: it takes F and B, or F, I and W"
                    )


def depths(schedule: ActionSchedule) -> tuple[int, ...]:
    """Micro-batches that each stage stashes: the most in progress at a time.

    From the start of the forward until the gradients of weights are made; 0 for a stage that never
    has more than one, whose tensors are in its passes.
    """
    now, most = [0] * schedule.stages, [0] * schedule.stages
    for rank in schedule.ranks:
        for action in rank:
            if action.work == FORWARD:
                now[action.stage] += 1
                most[action.stage] = max(most[action.stage], now[action.stage])
            elif action.work in (BACKWARD, WEIGHTS):
                now[action.stage] -= 1
    return tuple(depth if depth > 1 else 0 for depth in most)


def read_csv(path: str | Path) -> ActionSchedule:
    """A schedule from a file of `torch.distributed.pipelining`; ValueError says what is wrong."""
    ranks = []
    try:
        with open(path, newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.reader(file), 1):
                ranks.append(tuple(_from_cells(row, f"{path}, line {number}")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: no schedule could be read: {error}") from error
    if sum(map(len, ranks)) > MOST_ACTIONS:
        raise ValueError(f"{path}: more than {MOST_ACTIONS:,} actions")
    if not ranks or not all(ranks):
        raise ValueError(f"{path}: each line has a rank's actions, such as 2F0; one has none")
    schedule = ActionSchedule(Path(path).name, tuple(ranks))
    if schedule.stages * schedule.micro_batches > MOST_ACTIONS:
        raise ValueError(f"{path}: a stage or micro-batch has too high a number")
    schedule.runnable()
    return schedule


def _from_cells(cells: Sequence[str], where: str) -> list[Action]:
    actions = []
    for cell in map(str.strip, cells):
        if not cell or _OTHER.fullmatch(cell):
            continue
        pair = _PAIR.fullmatch(cell)
        parts = [_ACTION.fullmatch(one.strip()) for one in (pair.groups() if pair else (cell,))]
        for place, part in enumerate(parts):
            if part is None:
                raise ValueError(
                    f"{where}: {cell[:40]!r} is not an action: write stage, work (F, B, I or W) and"
                    " micro-batch, such as 2F0"
                )
            stage, work, number = part.groups()
            actions.append(Action(int(stage), work, int(number), place + 1 < len(parts)))
    return actions


def write_csv(schedule: ActionSchedule, path: str | Path) -> None:
    """Write what `read_csv` and ``torch``'s ``_load_csv`` read."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(map(cells, schedule.ranks))


def cells(actions: Sequence[Action]) -> list[str]:
    """The cells of a rank's row."""
    row: list[str] = []
    for action, before in zip(actions, [None, *actions], strict=False):
        if before is not None and before.overlaps:
            row[-1] = f"({row[-1]};{action})OVERLAP_F_B"
        else:
            row.append(str(action))
    return row
