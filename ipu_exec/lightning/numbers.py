"""Whole numbers that record the comparisons made with them.

A compiled program is one path through the model. Where the step branches on ``batch_idx``,
``self.current_epoch`` or ``self.global_step``, the recorded answers identify the path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Self


class Asked(int):
    """A number in a step, or one computed from it with whole numbers.

    A comparison, or a test whether it is 0, is recorded with its answer.
    """

    answers: list[bool]

    @classmethod
    def of(cls, value: int, answers: list[bool]) -> Self:
        """``value``, recording its answers in ``answers``."""
        instance = cls(value)
        instance.answers = answers
        return instance

    def __hash__(self) -> int:
        return int.__hash__(self)

    def __bool__(self) -> bool:
        self.answers.append(int(self) != 0)
        return self.answers[-1]

    def __reduce__(self) -> Any:
        return int, (int(self),)  # copied or saved, it is a plain number


def _comparison(name: str) -> Any:
    plain = getattr(int, name)

    def compare(self: Asked, other: Any) -> Any:
        answer = plain(self, other)
        if answer is not NotImplemented:
            self.answers.append(answer)
        return answer

    return compare


def _arithmetic(name: str) -> Any:
    plain = getattr(int, name)

    def compute(self: Asked, *others: Any) -> Any:
        outcome = plain(self, *others)
        return Asked.of(outcome, self.answers) if type(outcome) is int else outcome

    return compute


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Asked, f"__{_name}__", _comparison(f"__{_name}__"))
for _name in ("add", "sub", "mul", "mod", "floordiv", "and", "or", "xor"):
    setattr(Asked, f"__{_name}__", _arithmetic(f"__{_name}__"))
    setattr(Asked, f"__r{_name}__", _arithmetic(f"__r{_name}__"))
Asked.__neg__ = _arithmetic("__neg__")  # type: ignore[method-assign]


@contextlib.contextmanager
def asked(trainer: Any) -> Iterator[list[bool]]:
    """Inside, the trainer's epoch and global step note what is asked of them; gives the answers."""
    answers: list[bool] = []
    loop = trainer.fit_loop
    epoch = loop.epoch_progress.current
    steps = loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total
    before = epoch.processed, steps.completed
    epoch.processed = Asked.of(epoch.processed, answers)
    steps.completed = Asked.of(steps.completed, answers)
    try:
        yield answers
    finally:
        epoch.processed, steps.completed = before
