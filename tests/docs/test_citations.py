"""Where a fact is from: every citation in the repository leads to a heading or a bibliography key.

Two forms are in use, in sources, tests, benchmarks and pages alike: ``docs/<page>.md``, alone or
with ``#heading``, and a key of docs/bibliography.md in brackets, alone or with a place in that
source: ``[KEY, lib/file.cpp]``.
"""

from __future__ import annotations

import csv
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import MADE, ROOT

FOLDERS = (
    *("ipuscope", "ipu_exec", "profiler", "planner", "reports", "viewer"),
    *("tests", "benchmarks", "tools", "examples"),
)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

_PAGE = re.compile(r"\b(docs/[\w-]+\.md)(?:#([\w-]+))?")
_LINK = re.compile(r"\]\((?!https?:)([\w./-]+\.md)?(?:#([\w-]+))?\)")
# A letter before the bracket makes it an index or a type, a bracket or colon after it a link.
_KEY = re.compile(r"(?<![\w`\]])\[([A-Z][A-Z0-9]{1,})(?:, [^\]]+)?\](?![(:])")
_ELSEWHERE = re.compile(r"(?<![\w/-])(?:shared/|facts/)[\w.]+|\bdesign\.md\b|\bfacts: ")


def keys() -> set[str]:
    """The keys of the bibliography's table."""
    words = (ROOT / "docs" / "bibliography.md").read_text()
    return set(re.findall(r"^\| ([A-Z][A-Z0-9]+) \|", words, re.MULTILINE))


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.replace(" ", "-") for title in plain}


def prose(path: Path) -> Iterator[str]:
    """The comments and strings of a Python file, and the whole of any other.

    Lines are joined, so that a citation may go on in the next one.
    """
    if path.suffix != ".py":
        yield re.sub(r"\s+", " ", path.read_text())
        return
    comment = ""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            comment += " " + token.string.lstrip("# ")
        elif token.type != tokenize.NL:
            yield comment
            comment = ""
        if token.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            yield re.sub(r"\s+", " ", token.string)
    yield comment


def faults(words: str, page: Path | None = None) -> list[str]:
    """The citations in a text that do not resolve; ``page`` is the page it is in, if any."""
    wrong = [f"[{key}] is not in docs/bibliography.md" for key in _KEY.findall(words)]
    wrong = [fault for fault in wrong if fault[1 : fault.index("]")] not in keys()]
    places = [(ROOT / name, anchor) for name, anchor in _PAGE.findall(words)]
    if page is not None:
        places += [
            (page.parent / name if name else page, anchor) for name, anchor in _LINK.findall(words)
        ]
    for target, anchor in places:
        if target in MADE:
            continue
        if not target.exists():
            wrong.append(f"{target.name} is not a page")
        elif anchor and anchor not in headings(target):
            wrong.append(f"{target.name} has no heading #{anchor}")
    wrong += [f"{name} is not in the repository" for name in _ELSEWHERE.findall(words)]
    return wrong


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_citations_in_the_code_resolve(path: Path) -> None:
    if path == Path(__file__):  # it has wrong ones on purpose
        return
    assert [fault for words in prose(path) for fault in faults(words)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_citations_in_the_pages_resolve(page: Path) -> None:
    assert [fault for words in prose(page) for fault in faults(words, page)] == []


@pytest.mark.parametrize("name", ["validation.csv", "more.csv", "gcp.csv"])
def test_each_measurement_names_its_source(name: str) -> None:
    with (ROOT / "benchmarks" / "fidelity" / name).open() as file:
        sources = {row["source"].split()[0] for row in csv.DictReader(file)}
    assert sources
    assert sources <= keys()


def test_every_key_is_cited_somewhere() -> None:
    cited = {
        key
        for path in [*SOURCES, *PAGES]
        if path.name not in ("bibliography.md", Path(__file__).name)
        for words in prose(path)
        for key in _KEY.findall(words)
    }
    assert keys() - cited == set()


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("cycles as measured [NOBODY]", "[NOBODY] is not in docs/bibliography.md"),
        ("by [XYZ, lib/file.cpp] and [JIA]", "[XYZ] is not in docs/bibliography.md"),
        ("see docs/cycles.md#no-such-heading", "cycles.md has no heading #no-such-heading"),
        ("see docs/nowhere.md", "nowhere.md is not a page"),
        ("see facts/cycles.md 5", "facts/cycles.md is not in the repository"),
        ("see shared/design", "shared/design is not in the repository"),
        ("as design.md has it", "design.md is not in the repository"),
    ],
)
def test_a_made_up_citation_is_found(words: str, fault: str) -> None:
    assert faults(words) == [fault]


def test_what_resolves_or_is_no_citation_passes() -> None:
    assert faults("8 bytes a cycle (docs/cycles.md#copies) [PL, lib/popops/Rearrange.cpp]") == []
    assert faults("int64[tiles], float32[B, S] and list[ABC]") == []


def test_a_citation_over_two_lines_is_read_as_one(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        '"""One\n\nby [NOBODY,\nfile.cpp]."""\n# as in [NOONE,\n#   section 5]\nA = 1\n'
    )
    assert [fault for words in prose(path) for fault in faults(words)] == [
        "[NOBODY] is not in docs/bibliography.md",
        "[NOONE] is not in docs/bibliography.md",
    ]
