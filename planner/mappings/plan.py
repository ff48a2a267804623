"""A plan: the mappings that were considered, best first, and what is proven of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ipuscope.planner.mappings.mapping import Mapping
from ipuscope.planner.mappings.question import Question

# What the time of a weight update goes into, in the order in which it is shown
SHARES = ("compute", "exchange", "bubble", "all-reduce", "update", "host")


@dataclass(frozen=True)
class Obtained:
    """The result of a full compile of a mapping."""

    cycles: int = 0  # of a weight update (a device iteration in inference)
    fullest: int = 0  # bytes of the fullest tile
    problem: str = ""  # why it does not run; empty where it does


@dataclass(frozen=True)
class Candidate:
    """A mapping, and what is predicted of it."""

    mapping: Mapping
    cycles: int  # of a weight update (a device iteration in inference)
    samples_per_second: float  # over all replicas
    seconds: float  # latency: of an update, or of a micro-batch from input to result in inference
    fullest: int  # bytes of the fullest tile, of ``limit``
    limit: int
    memory: str  # whether it fits, in words
    shares: dict[str, float]  # of `SHARES`: parts of the time, in sum 1
    proven: bool  # no other split onto these IPUs is quicker, for these costs
    gap: float  # share of its cycles that one could save at the most
    obtained: Obtained | None = None  # what its full compile gave, if it had one
    doubt: str = ""  # how far the model's cycles are likely off an IPU's
    own: bool = False  # the script has this mapping

    @property
    def off(self) -> tuple[float, float] | None:
        """Errors of the predicted cycles and bytes, as shares; None where it was not compiled."""
        if self.obtained is None or not self.obtained.cycles:
            return None
        came = self.obtained
        return self.cycles / came.cycles - 1, self.fullest / max(1, came.fullest) - 1

    @property
    def _longer(self) -> float:
        """The factor on predicted rates that a full compile gives, 1 where nothing was compiled."""
        off = self.off
        return 1 + off[0] if off is not None else 1.0

    @property
    def rate(self) -> float:
        """Samples per second, from its full compile where it had one."""
        return self.samples_per_second * self._longer

    @property
    def latency(self) -> float:
        """Seconds, from its full compile where it had one."""
        return self.seconds / self._longer

    @property
    def runs(self) -> bool:
        """Whether it may run: nothing that is known rules it out."""
        return self.obtained is None or not self.obtained.problem


def worth(candidate: Candidate, objective: str) -> tuple[float, ...]:
    """A key to compare candidates by, more is better; from the full compile where there is one."""
    rate = candidate.rate
    if objective == "latency":
        return (-candidate.latency, rate)
    if objective == "fewest-ipus":
        return (-candidate.mapping.attached, rate)
    return (rate, -candidate.mapping.attached)


@dataclass(frozen=True)
class Plan:
    """Candidates, best first; sentences about the first; what the search proved.

    ``gap``: share by which an unexamined mapping could be better than the first, at most; 0: none
    is, for the costs compiled (``exact``).
    """

    question: Question
    candidates: tuple[Candidate, ...]
    blocks: tuple[str, ...]
    why: tuple[str, ...] = ()
    gap: float = 0.0
    left_out: tuple[str, ...] = ()  # why some were not looked at, a sentence each
    stopped: str = ""  # what ended the search before its end, or ""
    modules: tuple[str, ...] = ()  # begin a Block each, where the model names none
    model: str = ""
    command: str = ""  # that was asked with
    levers: str = ""  # that it was planned with, as ipu-run --with takes them
    compiles: int = 0  # how many it took
    cached: int = 0  # how many more came from the disk
    seconds: float = 0.0  # of the clock
    clock_hz: float = 0.0
    notes: tuple[str, ...] = field(default_factory=tuple)
    script_samples: int = 0  # of a weight update as the script has it
    trainer: str = ""  # whose loop runs the model (`Provenance.trainer`)
    overlaps: bool = False  # the script has host I/O beside compute

    @property
    def best(self) -> Candidate:
        """The first candidate that is known to run, or not known not to."""
        return next((one for one in self.candidates if one.runs), self.candidates[0])

    @property
    def own(self) -> Candidate | None:
        """The script's own mapping, if it was compiled."""
        return next((one for one in self.candidates if one.own), None)

    @property
    def exact(self) -> bool:
        """Whether nothing in the question's scope can be better, for the costs compiled."""
        return not self.stopped and self.gap == 0
