"""``python -m tools.vertex_code CHECKOUT``: bytes of the code of poplibs' assembly vertices.

CHECKOUT is a directory with poplibs' sources ([PL]); needs ``gcc``, for its preprocessor. Prints
the bytes of each section of each ``codelets/asm/*.S``: an instruction is 4 bytes, a bundle two
instructions. A vertex is the sum of the sections that it uses: its entry, and what that calls.
`ipu_exec.lowering.vertices` has the sums of the vertices that we use; those that poplibs has in C++
are estimates there, because their compiler is not public.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

INSTRUCTION_BYTES = 4
# Poplar's headers are not public; what their vectors look like is set by the architecture
HEADERS = ("StackSizeDefs.hpp", "TileConstants.hpp", "AvailableVTypes.h")
OPENS = re.compile(r"\.(if\w*|rept?|macro)\b", re.IGNORECASE)
CLOSES = re.compile(r"\.(endif|endr|endm)\b", re.IGNORECASE)
BRANCH = re.compile(r"\.(else|elseif)\b", re.IGNORECASE)
LABEL = re.compile(r"^[\w.$]+:\s*")
DATA = {".long": 4, ".word": 4, ".int": 4, ".short": 2, ".half": 2, ".byte": 1}


class Assembler:
    """Expands macros, conditions and repetitions, and counts what is left."""

    def __init__(self) -> None:
        self.macros: dict[str, tuple[list[tuple[str, str]], list[str]]] = {}
        self.symbols: dict[str, int] = {}
        self.section = ".text"
        self.bytes: Counter[str] = Counter()

    def run(self, lines: list[str]) -> None:
        """Count ``lines``."""
        at = 0
        while at < len(lines):
            line = lines[at].strip()
            at += 1
            if not OPENS.match(line):
                self._line(line)
                continue
            parts, at = _block(lines, at, line)
            word = line.split()[0].lower()
            if word == ".macro":
                self._define(line, parts[0][1])
            elif word.startswith(".rep"):
                self.run(parts[0][1] * self._value(line.split(None, 1)[1]))
            else:
                self.run(next((body for test, body in parts if self._holds(test)), []))

    def _define(self, line: str, body: list[str]) -> None:
        _, name, *words = re.sub(r"\s*=\s*", "=", line).replace(",", " ").split()
        pairs = (word.partition("=") for word in words)
        self.macros[name] = ([(key.split(":")[0], default) for key, _, default in pairs], body)

    def _value(self, text: str) -> int:
        """Of an expression over symbols; one without a value counts as 0."""
        numbers = re.sub(
            r"[A-Za-z_.$][\w.$]*", lambda found: str(self.symbols.get(found.group(), 0)), text
        )
        result = subprocess.run(  # shell arithmetic is C's
            ["bash", "-c", 'echo "$(($1))"', "-", numbers], capture_output=True, text=True
        )
        return int(result.stdout or 0)

    def _holds(self, test: str) -> bool:
        word, _, rest = test.partition(" ")
        word = word.lower()
        if word == ".else":
            return True
        if word in (".ifc", ".ifnc"):
            left, right = (part.strip() for part in rest.split(",", 1))
            return (left == right) == (word == ".ifc")
        if word in (".ifdef", ".ifndef"):
            return (rest.strip() in self.symbols) == (word == ".ifdef")
        if word in (".ifb", ".ifnb"):
            return (not rest.strip()) == (word == ".ifb")
        return bool(self._value(rest))

    def _line(self, line: str) -> None:
        for part in line.split(";"):
            text = part.strip("{} \t")
            while label := LABEL.match(text):
                text = text[label.end() :].strip("{} \t")
            if text:
                self._statement(text)

    def _statement(self, text: str) -> None:
        word = text.split()[0]
        if word in self.macros:
            self._expand(word, text[len(word) :].strip())
        elif word.lower() in (".equ", ".set", ".equiv"):
            name, value = text.split(None, 1)[1].split(",", 1)
            self.symbols[name.strip()] = self._value(value)
        elif re.match(r"[\w.]+\s*=", text):
            name, value = text.split("=", 1)
            self.symbols[name.strip()] = self._value(value)
        elif word in (".section", ".pushsection"):
            self.section = text.split(None, 1)[1].split(",")[0].strip('" ')
        elif word in DATA:
            self.bytes[self.section] += DATA[word] * len(text.split(","))
        elif not word.startswith(".") and word != "DEF_STACK_USAGE":
            self.bytes[self.section] += INSTRUCTION_BYTES

    def _expand(self, name: str, words: str) -> None:
        parameters, body = self.macros[name]
        given = dict(parameters)
        left = [key for key, _ in parameters]
        for value in _arguments(words):
            key, equals, named = value.partition("=")
            if equals and key in given:
                given[key] = named
            elif left:
                given[left.pop(0)] = value
        lines = body
        for key in sorted(given, key=len, reverse=True):
            pattern = re.compile(rf"\\{key}(?!\w)")
            lines = [pattern.sub(lambda _, new=given[key]: new, line) for line in lines]
        self.run([line.replace("\\()", "") for line in lines])


def _arguments(words: str) -> Iterator[str]:
    """Of a macro: between commas, or between spaces unless they are an expression."""
    for value in words.split(",") if words else ():
        value = value.strip()
        yield from [value] if re.search(r"[-+*/()]", value) else value.split()


def _block(lines: list[str], at: int, first: str) -> tuple[list[tuple[str, list[str]]], int]:
    """The (test, lines) of each branch up to the end of a block, and where it goes on."""
    parts: list[tuple[str, list[str]]] = [(first, [])]
    depth = 1
    while True:
        line = lines[at].strip()
        at += 1
        depth += bool(OPENS.match(line)) - bool(CLOSES.match(line))
        if depth == 0:
            return parts, at
        if depth == 1 and BRANCH.match(line):
            parts.append((line, []))
        else:
            parts[-1][1].append(line)


def sections(source: Path, checkout: Path) -> dict[str, int]:
    """Bytes of each section of an assembly file, for an MK2."""
    with tempfile.TemporaryDirectory() as folder:
        headers = Path(folder) / "poplar"
        headers.mkdir()
        for name in HEADERS:
            (headers / name).write_text("")
        found = [checkout / "include", *checkout.glob("lib/*/codelets"), source.parent]
        paths = [f"-I{path}" for path in (folder, *found)]
        words = ["gcc", "-E", "-P", "-undef", "-x", "assembler-with-cpp", "-D__IPU__"]
        command = [*words, "-D__IPU_ARCH_VERSION__=2", *paths, str(source)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assembler = Assembler()
    assembler.run(re.sub(r"//.*", "", text).split("\n"))
    return dict(assembler.bytes)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="of poplibs, at the commit of [PL]")
    checkout = parser.parse_args().checkout
    for source in sorted(checkout.glob("lib/*/codelets/asm/*.S")):
        try:
            found = sections(source, checkout)
        except subprocess.CalledProcessError:  # it is a part of others
            continue
        for name, nbytes in found.items():
            print(f"{nbytes:6} {source.name} {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
