"""The page docs/poptorch-suite.md."""

from __future__ import annotations

import datetime
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tools.poptorch_suite import outcomes as results
from tools.poptorch_suite import sources

_TOP = """# PopTorch's own tests

What comes of the tests that PopTorch's authors wrote [POPTORCH, tests/], unchanged, on IPUscope. Of
{total} tests that ran {passed} pass, {failed} fail, {internals} fail for want of what only the
compiled PopTorch, PopART, real hardware or the network has, {purpose} differ on purpose, and
{skipped} are skipped by the suite itself. Of those that passed or failed and need nothing of that
kind, {rate:.1%} pass. Files that are not collected: {uncollected}; they import operators that are
compiled from C++ for PopART.

Made on {date} by

```
python -m tools.poptorch_suite CHECKOUT --outcomes OUTCOMES
python -m tools.poptorch_suite CHECKOUT --outcomes OUTCOMES --page > docs/poptorch-suite.md
```

where `CHECKOUT` has graphcore/poptorch (branch sdk-release-3.4), in an environment with
pytest-timeout, pillow, torchvision, transformers, pyg-nightly 2.4.0.dev20230613 (the
torch_geometric that poptorch_geometric asks for), torch_scatter, torch_cluster, torch_spline_conv,
pytest-benchmark and nbconvert besides IPUscope's own; poptorch_geometric is the checkout's. It goes
on where it stopped; a test is run again where its lines are taken out of `OUTCOMES`. The suite was
written for PyTorch 2.0; `tools/poptorch_suite/plugin.py` says what of it is put back.
`tests/poptorch/internals.txt` lists the tests that cannot pass, with a reason each.
"""


def page(
    done: Mapping[str, results.Outcome],
    known: Sequence[results.Reason],
    today: datetime.date,
    note: str = "",
    tests: Sequence[sources.TestSource] = (),
) -> str:
    """The whole page; ``note`` adds to how it was made, ``tests`` what is to be refused."""
    files = results.by_file(done, known)
    total = sum(files.values(), Counter())
    rate = total["passed"] / max(1, total["passed"] + total["failed"])
    words = {kind: total[kind] for kind in ("passed", "failed", "internals", "skipped")}
    uncollected = total.pop("not collected", 0)
    bad = [outcome for outcome in done.values() if outcome.kind in ("failed", "cut")]
    excuses = [(one.test, why) for one in bad if (why := results.excused(one, known))]
    purpose = sorted(row for row in excuses if row[1].startswith(results.ON_PURPOSE))
    words = {**words, "purpose": len(purpose), "internals": words["internals"] - len(purpose)}
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
    if missing:
        lines += ["", "Not collected: " + ", ".join(f"`{file}`" for file in missing) + "."]
    lines += _failing(done, known)
    lines += _refused(tests, sources.by_function(done, known))
    if purpose:
        lines += ["", "## What differs on purpose", "", "| test | how |", "| --- | --- |"]
        lines += [f"| `{one}` | {why.removeprefix(results.ON_PURPOSE)} |" for one, why in purpose]
    lines += ["", "## What cannot pass", "", "| tests | why |", "| --- | --- |"]
    whys = Counter(why for _, why in excuses if not why.startswith(results.ON_PURPOSE))
    lines += [f"| {count} | {why} |" for why, count in whys.most_common()]
    return "\n".join(lines)


def _failing(done: Mapping[str, results.Outcome], known: Sequence[results.Reason]) -> Iterator[str]:
    """The tests that fail and should not, with the first line of their error."""
    bad = [outcome for outcome in done.values() if outcome.kind in ("failed", "cut")]
    bad = [outcome for outcome in bad if not results.excused(outcome, known)]
    if not bad:
        return
    yield from ("", "## What fails", "", "| test | error |", "| --- | --- |")
    for outcome in sorted(bad, key=lambda outcome: outcome.test):
        error = results.cause(outcome.text).replace("|", "\\|") or "its process died, or was ended"
        yield f"| `{outcome.test}` | {error} |"


def _refused(tests: Sequence[sources.TestSource], ran: Mapping[str, Counter[str]]) -> Iterator[str]:
    """What the suite says is refused: the outcomes of its tests that have a ``pytest.raises``."""
    raising = [test for test in tests if test.raises]
    if not raising:
        return
    kinds: Counter[str] = Counter()
    others = []
    for test in raising:
        outcome = ran.get(test.test, Counter())
        worst = next((kind for kind in _WORST_FIRST if outcome[kind]), "not collected")
        kinds[worst] += 1
        if worst != "passed":
            others.append((test.test, worst))
    places = len({(test.test.split("::")[0], line) for test in raising for line in test.raises})
    yield from ("", "## What is refused", "")
    said = ", ".join(f"{kinds[kind]} {_SAID[kind]}" for kind in _SAID if kinds[kind])
    yield (
        f"The suite says in {places} places, by `pytest.raises`, what PopTorch refuses. Of the"
        f" {len(raising)} test functions that go through them {said}. Those that do not pass:"
    )
    yield from ("", "| test | outcome |", "| --- | --- |")
    yield from (f"| `{test}` | {_SAID[kind]} |" for test, kind in others)


_WORST_FIRST = ("failed", "internals", "passed", "skipped")
_SAID = {
    "passed": "pass",
    "failed": "fail",
    "internals": "cannot pass, or differ on purpose",
    "skipped": "are skipped by the suite",
    "not collected": "are in files that are not collected",
}
