"""Writes docs/libpva-clients.md from the answers."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.clients.answers import Answer
from benchmarks.clients.loading import Speed

_HEAD = """# Public clients of libpva on our profiles

<!-- Made by `python -m benchmarks.clients --popliner DIR --reptil DIR --addons DIR
--flash-attention DIR`, each DIR a checkout of the client's public repository. -->

Programs written for the vendor's libpva run on `ipuscope.profiler.pva` unchanged (`import pva`
under `ipu-run`). Here each concludes something of a profile, and the profile's own frames say the
same: the demo's network in a pipeline over four IPUs (inference) for `pva_utils` and reptil, its
training on one IPU for the others. PopLiner's total has every operation in a layer
(`--layer-name-regex '^(.)'`), as it leaves out what is in none.

| client | asked | concluded | the profile | |
| --- | --- | --- | --- | --- |
"""
_BULK = """
## What loading takes

libpva gives a list entry by entry. Programs of your own read numpy arrays instead: the frames of
`ipuscope.profiler.open_report` (`variables`, `program_steps`, `tiles`, `vector`).
"""


def written(replies: Sequence[Answer], speed: Speed) -> str:
    """The text of the page."""
    rows = [
        f"| {one.client} | {one.question} | {one.concluded} | {one.known} |"
        f" {'same' if one.same else 'DIFFERS'} |"
        for one in replies
    ]
    times = (
        f"\nOf BERT-Base compiled for one IPU ({speed.pieces:,} lowered variables) PopLiner loads"
        f" its\nmodel in {speed.popliner:.1f} s of the processor. What it asks for there (every"
        " lowered variable,\nevery operation's variables, every program's code and vertices) takes"
        f" {speed.attributes:.1f} s.\n"
        f"Making every lowered variable takes {speed.walk:.1f} s in a loop and"
        f" {speed.index:.1f} s by index ({speed.pieces / speed.walk / 1e6:.1f} and"
        f" {speed.pieces / speed.index / 1e6:.1f} million a second): most of PopLiner's time is"
        " what\nit does with each in Python. With all that it asks for made beforehand, as plain"
        f" Python objects and lists,\nits loading takes {speed.bare:.1f} s,"
        f" {speed.bare / speed.popliner:.0%} of what it takes here: no reader of profiles, however"
        f" quick,\ncould make it more than {speed.popliner / speed.bare:.1f} times quicker.\n"
    )
    return _HEAD + "\n".join(rows) + "\n" + _BULK + times
