"""Run public clients of libpva on profiles of ours, and hold their answers against the profiles'.

``python -m benchmarks.clients --popliner DIR --reptil DIR --addons DIR --flash-attention DIR``
prints a table and writes docs/libpva-clients.md. Each DIR is a checkout of the client's public
repository: graphcore/popliner, graphcore-research/sparsity-benchmarks,
graphcore/ipu_tensorflow_addons and graphcore-research/flash-attention-ipu. Their sources are run as
they are and are no part of this repository; they need tqdm, coloredlogs and matplotlib. Exit code 1
where an answer differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.clients import answers, loading, page, profiles
from benchmarks.dated import dated

PAGE = Path(__file__).parents[2] / "docs" / "libpva-clients.md"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for client in answers.CLIENTS:
        parser.add_argument(f"--{client}", type=Path, metavar="DIR", required=True)
    args = parser.parse_args()
    answers.stand_in()
    with tempfile.TemporaryDirectory() as folder:
        paths = profiles.make(Path(folder))
        replies = [
            answer
            for client, ask in answers.CLIENTS.items()
            for answer in ask(getattr(args, client.replace("-", "_")), paths)
        ]
        speed = loading.measure(paths.bert)
    text = page.written(replies, speed)
    print(text)
    PAGE.write_text(dated(text), encoding="utf-8")
    return int(not all(answer.same for answer in replies))


if __name__ == "__main__":
    sys.exit(main())
