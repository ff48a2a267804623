"""The question of a plan: how many IPUs, what is fixed, and what counts as best."""

from __future__ import annotations

import math
from collections.abc import Mapping as Values
from dataclasses import dataclass, field
from typing import Any

OBJECTIVES = ("throughput", "latency", "fewest-ipus")
RECOMPUTE, STATE, PARTS = "recompute", "state", "rts"
_YES_NO = {"yes": True, "no": False}
# what --fix takes: its values' kind, and what to say of it
FIXED = {
    "t": "a number of IPUs that share a stage's tensors",
    "p": "a number of IPUs of the pipeline",
    "r": "a number of replicas",
    "phases": "a number of phases, each a pipeline",
    "accumulation": "a number of micro-batches of a weight update",
    "proportion": "a share of an IPU's memory, as 0.2",
    RECOMPUTE: "yes or no",
    STATE: "on-chip or off-chip",
    PARTS: "yes or no",
}


class QuestionError(ValueError):
    """A question that makes no sense; the message says what would."""


@dataclass(frozen=True)
class Question:
    """What is asked, and what is tried of each setting, the script's own first.

    ``keeps``: the last stage's recomputation as the script's options say, or none
    (`ipuscope.planner.mappings.mapping.Key`); ``again``: whether one stage may recompute where
    they say nothing. ``suggested``: of "micro_batch", "proportion" and
    "shards", those that nobody asked for: they are tried as long as they promise something.
    """

    ipus: int  # to be used at the most
    global_batch: int  # samples of a weight update (or device iteration), over all replicas
    micro_batches: tuple[int, ...]
    proportions: tuple[float, ...] = (0.0,)
    shards: tuple[int, ...] = (1,)
    fixed: Values[str, Any] = field(default_factory=dict)  # of `FIXED`: what must be so
    objective: str = "throughput"  # of `OBJECTIVES`
    budget: float = 0.0  # seconds after which no compile begins; 0: none
    training: bool = True  # weight updates, else inference
    suggested: tuple[str, ...] = ()
    keeps: tuple[bool, ...] = (False,)
    again: bool = False

    @property
    def turn(self) -> str:
        """What an iteration of the device is, in words."""
        return "weight update" if self.training else "device iteration"


def parse_fixed(words: list[str]) -> dict[str, Any]:
    """``["p=4", "recompute=no"]`` as values by name. QuestionError for names not in `FIXED`."""
    fixed: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in FIXED:
            raise QuestionError(f"--fix {word!r}: write one of {', '.join(FIXED)}, such as p=4")
        fixed[name] = _value(name, value)
    return fixed


def _value(name: str, value: str) -> Any:
    try:
        if name in (RECOMPUTE, PARTS):
            return _YES_NO[value]
        if name == STATE:
            return {"on-chip": False, "off-chip": True}[value]
        number = float(value) if name == "proportion" else int(value)
    except (KeyError, ValueError):
        raise QuestionError(f"--fix {name}={value}: {name} is {FIXED[name]}") from None
    if number <= 0 or (name == "proportion" and number > 1):
        raise QuestionError(f"--fix {name}={value}: {name} is {FIXED[name]}")
    return number


def parse_seconds(text: str) -> float:
    """``5m``, ``90s``, ``1h`` or ``90`` in seconds. QuestionError for anything else."""
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], text[-1:]) if text[-1:] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise QuestionError(f"--budget {text!r} is not a duration: write 90s, 5m or 1h")
    return seconds


def usual_micro_batches(own: int, batch: int) -> tuple[int, ...]:
    """Every micro-batch that divides the samples of a weight update, nearest to its own first."""
    from ipuscope.planner.levers.settings import divisors

    return tuple(sorted(divisors(batch), key=lambda size: (abs(math.log(size / own)), size)))


def shard_counts(own: int, planned: bool, ipus: int, fixed: int | None) -> tuple[int, ...]:
    """What is tried of t: the script's own, and other powers of two where it says how to shard."""
    if fixed is not None:
        return (fixed,)
    others = [1 << n for n in range(9) if 1 << n <= ipus] if planned else []
    return tuple(dict.fromkeys([own, *others]))
