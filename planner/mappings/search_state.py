"""The state of a search over compiles: what was priced, what was found, and what was left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.mappings.engine import Engine
from ipuscope.planner.mappings.mapping import Key, Mapping
from ipuscope.planner.mappings.mapping_search import try_split
from ipuscope.planner.mappings.phased_costs import PhasedCosts
from ipuscope.planner.mappings.plan import Candidate, worth
from ipuscope.planner.mappings.priced import Place, Priced
from ipuscope.planner.mappings.question import Question

INTERRUPTED = "interrupted"


class NoMapping(Exception):
    """Nothing fits; the message says by how many bytes, on what, and what would."""


@dataclass(frozen=True)
class News:
    """Progress: ``done`` of ``wanted`` compiles, and the best so far."""

    done: int
    wanted: int
    what: str
    best: Candidate | None


@dataclass
class State:
    """The state of the search."""

    question: Question
    engine: Engine
    on_news: Callable[[News], None]
    keys: Sequence[Key] = ()
    priced: dict[Key, Priced] = field(default_factory=dict)
    equal: dict[Key, Key] = field(default_factory=dict)  # of which Blocks cost what others' do
    tried: set[Key] = field(default_factory=set)
    alone: dict[Key, bool] = field(default_factory=dict)  # whether all Blocks fit an IPU
    there: dict[Mapping, Place] = field(default_factory=dict)  # with a full compile's costs
    phased: dict[Key, PhasedCosts] = field(default_factory=dict)
    some: Costs | PhasedCosts | None = None  # of any compile: the Blocks, and the machine
    candidates: list[Candidate] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    open_rate: float = 0.0
    bounds: dict[tuple[Key, int], float] = field(default_factory=dict)  # with state in parts
    done: int = 0
    wanted: int = 0
    began: float = field(default_factory=time.monotonic)
    stopped: str = ""

    @property
    def best(self) -> Candidate | None:
        """The best candidate that runs."""
        running = [one for one in self.candidates if one.runs]
        return max(running, key=self.worth, default=None)

    def worth(self, candidate: Candidate) -> tuple[float, ...]:
        """By which candidates are ranked: more is better."""
        return worth(candidate, self.question.objective)

    def quick(self, candidate: Candidate) -> float:
        """How quick it is, in the sense of the objective: more is better."""
        if self.question.objective == "latency":
            return 1 / max(candidate.latency, 1e-12)
        return candidate.rate

    def late(self) -> bool:
        """Whether the time budget is used up."""
        budget = self.question.budget
        over = bool(budget) and time.monotonic() - self.began > budget
        if over:
            self.stopped = f"the budget of {budget:g} s is spent"
        return over

    def leave_out(self, key: Key, same: Key) -> None:
        """Leave a memory proportion out: it gives the costs of another."""
        why = f"Blocks cost the same as with a proportion of {same.proportion:g}"
        self.left_out.append(f"{key}: {why}")

    def tell(self, what: str) -> None:
        """Report progress."""
        self.on_news(News(self.done, self.wanted, what, self.best))


class EngineLost(Exception):
    """What compiles is gone; its text says how, and the way out."""


def too_late(state: State, keys: Sequence[Key]) -> bool:
    """Whether there is no time for these; then they are left out."""
    late = state.late()
    if late:
        state.left_out += [f"{key}: there was no time for it" for key in keys]
        state.tried.update(keys)
    return late


def split_at(state: State, place: Place, surely: bool = False) -> Candidate | None:
    """The quickest split onto a place; None where nothing fits."""
    arguments = (place, state.question, None, surely)
    (outcome,) = state.engine.each(try_split, [arguments])
    return outcome if isinstance(outcome, Candidate) else None


def add(state: State, candidate: Candidate) -> None:
    """Add a candidate whose mapping is not among them."""
    if all(candidate.mapping != one.mapping for one in state.candidates):
        state.candidates.append(candidate)
