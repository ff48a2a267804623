"""docs/poptorch-suite.md."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence

from tools.poptorch_suite import outcomes as results

_TOP = """# PopTorch's own tests

What comes of the tests that PopTorch's authors wrote [POPTORCH, tests/], unchanged, on IPUscope. Of
{total} tests {passed} pass, {failed} fail, {internals} need what only the compiled PopTorch or
PopART has, and {skipped} are skipped by the suite itself. Of those that need no internals and are
not skipped, {rate:.1%} pass.

Made on {date} by

```
python -m tools.poptorch_suite CHECKOUT --outcomes OUTCOMES
python -m tools.poptorch_suite CHECKOUT --outcomes OUTCOMES --page > docs/poptorch-suite.md
```

where `CHECKOUT` has graphcore/poptorch (branch sdk-release-3.4), in an environment with
pytest-timeout, torchvision, transformers and torch_geometric besides IPUscope's own. It takes an
hour or two on one core and goes on where it stopped. The suite was written for PyTorch 2.0:
`tools/poptorch_suite/plugin.py` says what of it is put back. `tests/poptorch/internals.txt` lists
the tests that need internals, with a reason each.
"""


def page(
    done: Mapping[str, results.Outcome],
    known: Sequence[results.Reason],
    today: datetime.date,
) -> str:
    """The whole page."""
    files = results.by_file(done, known)
    total = sum(files.values(), Counter())
    rate = total["passed"] / max(1, total["passed"] + total["failed"])
    words = {kind: total[kind] for kind in ("passed", "failed", "internals", "skipped")}
    lines = [_TOP.format(total=sum(total.values()), rate=rate, date=today.isoformat(), **words)]
    lines += ["## By file", "", "| file | pass | fail | internals | skipped |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for file, counts in sorted(files.items()):
        columns = [counts[kind] for kind in ("passed", "failed", "internals", "skipped")]
        lines.append(f"| `{file}` | {' | '.join(map(str, columns))} |")
    lines += ["", "## What needs internals", "", "| tests | why |", "| --- | --- |"]
    for why, count in _why(done, known).most_common():
        lines.append(f"| {count} | {why} |")
    return "\n".join(lines)


def _why(done: Mapping[str, results.Outcome], known: Sequence[results.Reason]) -> Counter[str]:
    bad = [outcome for outcome in done.values() if outcome.kind in ("failed", "cut")]
    return Counter(why for outcome in bad if (why := results.excused(outcome, known)))
