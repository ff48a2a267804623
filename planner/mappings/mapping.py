"""A mapping of a model onto a pod, and the key of the costs of its Blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What costs of Blocks depend on: there is one compile for each key."""

    shards: int = 1  # IPUs that share a stage's tensors (t)
    micro_batch: int = 1  # samples of one replica's
    proportion: float = 0.0  # share of an IPU's memory that products may use; 0: the script's
    in_parts: int = 0  # replicas with a part of the optimiser state each (rts); 0: all of it
    accumulates: bool = True  # gradients of several micro-batches, in accumulators
    keeps: bool = False  # the last stage recomputes nothing, where the script's options say it does
    again: bool = False  # one stage has all Blocks, and recomputes (`Mapping.again`)

    @property
    def last_recomputes(self) -> bool | None:
        """`StagePlan.recompute` of the last stage."""
        return True if self.again else False if self.keeps else None

    def mapping(
        self,
        replicas: int,
        stages: tuple[StagePlan, ...],
        accumulation: int,
        in_parts: bool,
        phases: int = 1,
    ) -> Mapping:
        """A mapping whose Blocks cost what this key's do."""
        return Mapping(
            self.shards,
            replicas,
            stages,
            self.micro_batch,
            accumulation,
            self.proportion,
            in_parts,
            phases,
        )

    def __str__(self) -> str:
        words = [f"micro-batch {self.micro_batch}"]
        words += [f"t {self.shards}"] if self.shards > 1 else []
        words += [f"memory proportion {self.proportion:g}"] if self.proportion else []
        words += [f"state in {self.in_parts} parts"] if self.in_parts else []
        words += [] if self.accumulates else ["no accumulation"]
        words += ["nothing recomputed in the last stage"] if self.keeps else []
        words += ["one stage that recomputes"] if self.again else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A stage: its IPU within the replica, its Blocks, and how it saves memory."""

    ipu: int
    blocks: tuple[str, ...]
    recompute: bool | None = None  # None: a pipeline's last stage does as the script's options say
    state_off_chip: bool = False  # optimiser state waits in streaming memory
    phase: int = 0  # that it is in
    proportion: float = 0.0  # memory proportion of its IPU; 0: the mapping's


@dataclass(frozen=True)
class Mapping:
    """t x p x r IPUs, the stages, and how a weight update's samples are cut."""

    shards: int  # t
    replicas: int  # r
    stages: tuple[StagePlan, ...]
    micro_batch: int  # samples of a replica's
    accumulation: int  # micro-batches of a weight update (of a device iteration in inference)
    proportion: float = 0.0  # 0: as the script says
    in_parts: bool = False  # optimiser state in parts on the replicas (rts)
    phases: int = 1  # pipelines one after another, each for all micro-batches

    @property
    def pipeline(self) -> int:
        """p: IPUs of a replica that have a stage, shards counted once."""
        return max(stage.ipu for stage in self.stages) + 1

    @property
    def attached(self) -> int:
        """IPUs that are attached: t times the power of two for p, for each replica."""
        return self.shards * attached(self.pipeline) * self.replicas

    @property
    def in_phases(self) -> bool:
        """Whether each phase is a pipeline of its own."""
        return self.phases > 1

    @property
    def samples(self) -> int:
        """Samples of a weight update, over all replicas."""
        return self.micro_batch * self.accumulation * self.replicas

    @property
    def key(self) -> Key:
        """The key of its Blocks' costs."""
        parts = self.replicas if self.in_parts and not self.in_phases else 0
        several, keeps = self.accumulation > 1, self.stages[-1].recompute is False
        own = self.shards, self.micro_batch, self.proportion
        return Key(*own, parts, several, keeps, self.again)

    @property
    def again(self) -> bool:
        """Whether a replica is one stage, which recomputes as ``autoRecomputation`` 1 does.

        That stores the least live sets: a stage that is alone has no other checkpoints.
        """
        return len(self.stages) == 1 and self.stages[0].recompute is True

    @property
    def split(self) -> str:
        """Blocks of each stage, ``3-7-7-7``, with IPUs where one comes back.

        In phases ``1, 96 x 1-1-1-1, 1-1-1``: those of each phase.
        """
        if self.in_phases:
            return _split_of_phases(self.stages)
        counts = "-".join(str(len(stage.blocks)) for stage in self.stages)
        ipus = [stage.ipu for stage in self.stages]
        if ipus == list(range(len(ipus))):
            return counts
        return f"{counts} on {_short(ipus)}"

    @property
    def recomputation(self) -> str:
        """Which stages recompute: ``all``, ``none``, or their numbers. The last has no choice."""
        if self.in_phases:
            return "script's"
        early = self.stages if self.again else self.stages[:-1]
        return _which([stage.recompute is True for stage in early])

    @property
    def state(self) -> str:
        """Where optimiser state is: ``on chip``, ``off chip``, or which stages have it off."""
        off = _which([stage.state_off_chip for stage in self.stages])
        words = {"none": "on chip", "all": "off chip"}.get(off, f"off chip in {off}")
        return f"{words}, in parts" if self.in_parts else words

    @property
    def proportions(self) -> dict[int, float]:
        """The memory proportion of each IPU; empty: as the script says."""
        if not self.proportion:
            return {}
        return {stage.ipu: stage.proportion or self.proportion for stage in self.stages}

    @property
    def mixes_proportions(self) -> bool:
        """Whether an IPU has a memory proportion other than most."""
        return any(stage.proportion for stage in self.stages)

    @property
    def memory_proportion(self) -> str:
        """The proportions in words: ``0.2``, or ``0.2, 0.6 on 1,3``; ``script's``."""
        if not self.proportion:
            return "script's"
        others: dict[float, list[int]] = {}
        for ipu, share in sorted(self.proportions.items()):
            if share != self.proportion:
                others.setdefault(share, []).append(ipu)
        on_ipus = [f"{share:g} on {_numbers(ipus)}" for share, ipus in sorted(others.items())]
        return ", ".join([f"{self.proportion:g}", *on_ipus])

    def __str__(self) -> str:
        phases = f", {self.phases} phases" if self.in_phases else ""
        return (
            f"t={self.shards} p={self.pipeline} r={self.replicas}, {self.split}, micro-batch"
            f" {self.micro_batch} x {self.accumulation}{', rts' * self.in_parts}{phases}"
        )


_NAMED = 9  # stages whose IPUs are named one by one


def attached(ipus: int) -> int:
    """IPUs that are attached for so many: the next power of two."""
    return 1 << (ipus - 1).bit_length()


def _short(ipus: list[int]) -> str:
    """IPUs of stages; of many, consecutive ones as ``0-15``."""
    if len(ipus) <= _NAMED or ipus[:-1] != list(range(len(ipus) - 1)):
        return ",".join(map(str, ipus))
    return f"0-{ipus[-2]},{ipus[-1]}"


def _split_of_phases(stages: tuple[StagePlan, ...]) -> str:
    """Blocks of each stage, phase by phase, equal ones once."""
    phases = [
        "-".join(str(len(stage.blocks)) for stage in of_phase)
        for _, of_phase in groupby(stages, key=lambda stage: stage.phase)
    ]
    counted = [(counts, len(list(run))) for counts, run in groupby(phases)]
    return ", ".join(f"{many} x {counts}" if many > 1 else counts for counts, many in counted)


def _which(flags: list[bool]) -> str:
    if not any(flags):
        return "none"
    if all(flags):
        return "all"
    return ",".join(_runs(flags))


def _numbers(ipus: list[int]) -> str:
    return ",".join(_runs([ipu in ipus for ipu in range(max(ipus) + 1)]))


def _runs(flags: list[bool]) -> Iterator[str]:
    """Numbers of the entries that are set, ``0-2`` where they are consecutive."""
    for flag, run in groupby(enumerate(flags), key=lambda item: item[1]):
        numbers = [number for number, _ in run]
        if flag:
            yield str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
