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
have to be downloaded, or C++{undecided}.

Made on {date} by

```sh
python -m tools.examples_suite CHECKOUT --libraries LIBRARIES
python -m tools.examples_suite CHECKOUT --page > docs/graphcore-examples.md
```

in an environment with PyTorch 2.13.0, Lightning 2.6.6, transformers 4.28.1, timm 0.5.4,
torchvision, torch_scatter and pyg-nightly 2.4.0.dev20230613{needs}. `LIBRARIES` has graphcore's
`examples_utils` and `poptorch_geometric`. `tools/examples_suite/applications.toml` has the
commands, and the text that each obstacle has to show; an end without that text counts as
*undecided*.

## What stands for something else

`tools/examples_suite/generated` has it; the applications are unchanged:

- MNIST, FashionMNIST, CIFAR-10, ImageNet's folders and the graphs of TUDataset, Planetoid, QM9,
  IMDB and Reddit are generated, of the same shapes; of QM9's 130,831 molecules 1,000 differ.
- torchaudio, which reads sound files, is a name without content.
- Names that libraries no longer have are put back: `numpy.float` and its like, pictures
  posterised to 0 bits, `Sampler(data_source)`, names of `typing` in `torch.fx`,
  `pytorch_lightning.utilities.distributed`, and Lightning 1's hooks at the end of an epoch, which
  `--compile-only` never reaches.
- An empty file stands for the compiled C++ of DINO and MAE, whose operators `ipu-run` has.

## Outcomes
"""


def page(rows: Sequence[tuple[Application, Outcome | None]], today: datetime.date) -> str:
    """The whole page: a table of what compiles, one of obstacles, the commands."""
    verdicts = [(one, _verdict(one, outcome)) for one, outcome in rows]
    counts = Counter(verdict for _, verdict in verdicts)
    compiles = counts["compiles"]
    left = counts["undecided"] + counts["not run"]
    words: dict[str, object] = {"total": len(rows), "compiles": compiles}
    words["others"] = len(rows) - compiles - left
    words["undecided"] = f"; {left} are undecided" if left else ""
    words["needs"] = "".join(_needs(one) for one, _ in rows if one.needs)
    lines = [_TOP.format(date=today.isoformat(), **words)]
    lines += ["| application | folder | comes to |", "| --- | --- | --- |"]
    for one, verdict in verdicts:
        why = one.obstacle["why"] if one.obstacle is not None and verdict != "compiles" else ""
        text = f"{verdict}: {why}" if why else verdict
        lines.append(f"| {one.name} | `{one.folder}` | {text} |")
    lines += ["", "## Commands", "", "| application | command |", "| --- | --- |"]
    lines += [f"| {one.name} | `{one.run}` |" for one, _ in verdicts]
    return "\n".join(lines)


def _needs(one: Application) -> str:
    return f";\n{one.name} with {' and '.join(one.needs).replace('==', ' ')}"


def _verdict(one: Application, outcome: Outcome | None) -> str:
    return "not run" if outcome is None else one.verdict(outcome)
