"""The page docs/graphcore-examples.md."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence

from tools.examples_suite.running import Application, Outcome

_TOP = """# The applications of graphcore/examples

All PyTorch applications, tutorials and simple applications of graphcore/examples (branch master,
SDK 3.4), unchanged, under `ipu-run --compile-only`, on generated data. Of {total}
{compiles} compile; {others} end before, at the first thing that is not ours: data or weights that
have to be downloaded, C++, a library that cannot be installed, or the age of the libraries that
they were written for; {undecided} are undecided: they ran out of time, or end at anything else.

Made on {date} by

```sh
python -m tools.examples_suite CHECKOUT --libraries LIBRARIES
python -m tools.examples_suite CHECKOUT --page > docs/graphcore-examples.md
```

in an environment with {versions};
`LIBRARIES` has graphcore's `examples_utils` and `poptorch_geometric`.
`tools/examples_suite/applications.toml` has the commands, and the text that each obstacle has to
show; an end without that text counts as *undecided*. `tools/examples_suite/generated` says which
data sets are generated; an empty file stands for a library that an application looks for before it
loads it.
"""
_VERSIONS = (
    "transformers 4.28.1, timm 0.5.4, torchvision, torch_scatter and pyg-nightly 2.4.0.dev20230613"
)


def page(rows: Sequence[tuple[Application, Outcome | None]], today: datetime.date) -> str:
    """The whole page: a table of what compiles, one of obstacles, the commands."""
    verdicts = [(one, _verdict(one, outcome)) for one, outcome in rows]
    counts = Counter(verdict for _, verdict in verdicts)
    compiles = counts["compiles"]
    left = counts["undecided"] + counts["not run"]
    words = {"total": len(rows), "compiles": compiles, "undecided": left}
    words["others"] = len(rows) - compiles - left
    lines = [_TOP.format(date=today.isoformat(), versions=_VERSIONS, **words)]
    lines += ["| application | folder | comes to |", "| --- | --- | --- |"]
    for one, verdict in verdicts:
        why = one.obstacle["why"] if one.obstacle is not None and verdict != "compiles" else ""
        text = f"{verdict}: {why}" if why else verdict
        lines.append(f"| {one.name} | `{one.folder}` | {text} |")
    lines += ["", "## Commands", "", "| application | command |", "| --- | --- |"]
    lines += [f"| {one.name} | `{one.run}` |" for one, _ in verdicts]
    return "\n".join(lines)


def _verdict(one: Application, outcome: Outcome | None) -> str:
    return "not run" if outcome is None else one.verdict(outcome)
