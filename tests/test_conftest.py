"""What the test run itself says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests import conftest


def summary(reasons: list[str]) -> list[str]:
    """Lines at the end of a run whose tests were skipped for these reasons."""
    lines: list[str] = []
    reporter = SimpleNamespace(
        stats={"skipped": [SimpleNamespace(longrepr=("file", 1, reason)) for reason in reasons]},
        write_line=lambda line, **_: lines.append(line),
    )
    conftest.pytest_terminal_summary(reporter)  # type: ignore[arg-type]
    return lines


@pytest.mark.parametrize("count", [1, 53])
def test_tests_without_a_browser_are_counted_with_the_way_out(count: int) -> None:
    (line,) = summary([f"Skipped: {conftest.NO_BROWSER}"] * count + ["Skipped: no zsh"])
    assert line.startswith(f"{count} test") and line.endswith("make browser")


def test_nothing_is_said_where_nothing_was_skipped_for_it() -> None:
    assert summary(["Skipped: no zsh"]) == []
