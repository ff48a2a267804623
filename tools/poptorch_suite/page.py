"""The page docs/poptorch-suite.md."""

from __future__ import annotations

import datetime
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

from tools.poptorch_suite import outcomes as results

_TOP = """# PopTorch's own tests

What comes of the tests that PopTorch's authors wrote [POPTORCH, tests/], unchanged, on IPUscope. Of
{total} tests that ran {passed} pass, {failed} fail, {internals} fail for want of what only the
compiled PopTorch, PopART, real hardware or the network has, and {skipped} are skipped by the suite
itself. Of those that passed or failed and need nothing of that kind, {rate:.1%} pass. {uncollected}
files are not collected, since they import what is not here: libraries of graphs and operators that
are compiled from C++.

Made on {date} by

```
python -m tools.poptorch_suite CHECKOUT --outcomes OUTCOMES
python -m tools.poptorch_suite CHECKOUT --outcomes OUTCOMES --page > docs/poptorch-suite.md
```

where `CHECKOUT` has graphcore/poptorch (branch sdk-release-3.4), in an environment with
pytest-timeout, pillow, torchvision, transformers, torch_geometric, torch_scatter and nbconvert
besides IPUscope's own; poptorch_geometric is the checkout's. It takes hours on one core and goes on
where it stopped, so that outcomes of several commits may stand side by side; a test is run again
where its lines are taken out of `OUTCOMES`. The suite was written for PyTorch 2.0 and
torch_geometric 2.4; `tools/poptorch_suite/plugin.py` says what of it is put back.
`tests/poptorch/internals.txt` lists the tests that cannot pass, with a reason each.
"""


def page(
    done: Mapping[str, results.Outcome],
    known: Sequence[results.Reason],
    today: datetime.date,
    note: str = "",
) -> str:
    """The whole page; ``note`` adds to how it was made."""
    files = results.by_file(done, known)
    total = sum(files.values(), Counter())
    rate = total["passed"] / max(1, total["passed"] + total["failed"])
    words = {kind: total[kind] for kind in ("passed", "failed", "internals", "skipped")}
    uncollected = total.pop("not collected", 0)
    ran = sum(total.values())
    top = _TOP.format(
        total=ran, rate=rate, date=today.isoformat(), uncollected=uncollected, **words
    )
    lines = [top, *([textwrap.fill(note, 100), ""] if note else [])]
    lines += ["## By file", "", "| file | pass | fail | internals | skipped |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for file, counts in sorted(files.items()):
        if counts["not collected"]:
            continue
        columns = [counts[kind] for kind in ("passed", "failed", "internals", "skipped")]
        lines.append(f"| `{file}` | {' | '.join(map(str, columns))} |")
    missing = sorted(file for file, counts in files.items() if counts["not collected"])
    lines += ["", "Not collected: " + ", ".join(f"`{file}`" for file in missing) + "."]
    lines += ["", "## What cannot pass", "", "| tests | why |", "| --- | --- |"]
    for why, count in _why(done, known).most_common():
        lines.append(f"| {count} | {why} |")
    return "\n".join(lines)


def _why(done: Mapping[str, results.Outcome], known: Sequence[results.Reason]) -> Counter[str]:
    bad = [outcome for outcome in done.values() if outcome.kind in ("failed", "cut")]
    return Counter(why for outcome in bad if (why := results.excused(outcome, known)))
