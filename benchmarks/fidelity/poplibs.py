"""``python -m benchmarks.fidelity.poplibs CHECKOUT``: register poplibs' benchmark file whole.

CHECKOUT is a directory with ``tests/benchmark_results.csv`` and ``tests/CMakeLists.txt`` of
poplibs at commit 8dcde1e [PLB], the last before both were removed, for instance of ``git worktree
add CHECKOUT 8dcde1e``. Each of its 555 results becomes a line of ``poplibs.csv`` with three
measurements: cycles, the bytes of the liveness report over all tiles (``TotalMemory``) and the
fullest tile with gaps (``MaxTileMemory``).
The rule: every result is a row. One whose work torch has no operator for is marked, and says what
stands for it.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

from benchmarks.fidelity.cases import Row

HERE = Path(__file__).parent
FILE = HERE / "poplibs.csv"
MACHINES = {"IpuModel1": "gc2", "IpuModel2": "mk2"}
QUANTITIES = {
    "cycles": ("cycles", "cycles", ""),
    "total_memory": ("total memory", "bytes", "-total"),
    "max_tile_memory": ("fullest tile with gaps", "bytes", "-tile"),
}
# Operators whose tool has the vendor's model compile vertices ("compileIPUCode" in [PLB,
# tools/*.cpp]): their code is then among what is always live. The model of the others has none.
WITH_CODE = {
    "products",
    "convolutions",
    "depthwise",
    "octave convolutions",
    "embedding",
    "triangular",
    "Cholesky",
}

GRU = "popnn resets the state before its second product, torch after it"
EMBEDDING = "the vendor's model counts the worst case: all indices in one worker's part"
OCTAVE = "here one convolution after the other; the vendor's run as one multi-convolution"
STEPWISE = "gradients of weights were made step by step then, of several steps at once since"
CELLS = "the cells of all gates lie in another order there"
Command = tuple[str, dict[str, str]]  # the kind of a benchmark and its options


@dataclass(frozen=True)
class Registered:
    """One benchmark of the source: what it runs, and its three measurements."""

    name: str
    machine: str
    dtype: str
    case: str
    cycles: int
    total_memory: int
    max_tile_memory: int
    mark: str = ""


def rows() -> list[Row]:
    """The registered benchmarks, each with its three measurements."""
    rows_read = []
    with FILE.open(newline="") as file:
        for line in csv.DictReader(file):
            for column, (quantity, unit, ending) in QUANTITIES.items():
                name = f"plb-{line['name']}-{line['machine']}{ending}"
                about = line["machine"], line["dtype"], line["case"], quantity, unit
                row = Row(name, "poplibs", *about, float(line[column]), "PLB", line["mark"])
                rows_read.append(_with_code(row) if quantity == "total memory" else row)
    return rows_read


def _with_code(row: Row) -> Row:
    """The row of bytes in all, with whether they count vertices' code."""
    counts = "with vertex code" if row.operator in WITH_CODE else "without code"
    return replace(row, quantity=f"{row.quantity} {counts}")


# -- reading the source


def commands(text: str) -> dict[str, Command]:
    """(kind, options) of each benchmark of a CMakeLists.txt, by its name.

    One is commented out there and has a result all the same.
    """
    text = re.sub(r"^#", "", text, flags=re.MULTILINE)
    by_name: dict[str, Command] = {}
    pattern = r"add_(\w+)_benchmark\(\s*NAME\s+(\S+)\s+PARAMS([^)]*?)(?:PARALLEL_LEVEL[^)]*)?\)"
    for kind, name, words in re.findall(pattern, text):
        for values in _values(name + words):
            chosen, filled = _fill(name, values).strip('"'), _fill(words, values)
            pairs = re.findall(r"--([\w-]+)[ =]+(\{[^}]*\}|\S+)", filled)
            by_name[chosen] = kind, {key: value.strip("{}") for key, value in pairs}
    return by_name


def _values(words: str) -> Iterator[dict[str, str]]:
    """What the loops of the file around a benchmark give its variables."""
    loops: dict[str, list[str]] = {
        "m": ["200", "600", "1000"],
        "k": ["64", "256", "512"],
        "n": ["10000", "20000", "30000"],
        "bs": ["1", "4", "8", "16"],
        "type": ["half", "float"],
    }
    bert = [
        {"h": h, "k": k, "fx": fx, "h3": str(3 * int(h)), "s": s}
        for (h, k, fx) in (("768", "12", "3072"), ("1024", "16", "4096"))
        for s in ("128", "384", "512")
    ]
    used = set(re.findall(r"\$\{(\w+)\}", words))
    if not used:
        yield {}
    elif used & {"s", "h"}:
        yield from bert
    elif "NAME" in used:
        for m, k, n in itertools.product(loops["m"], loops["k"], loops["n"]):
            yield {"m": m, "k": k, "n": n, "NAME": f"gemm_{m}x{k}x{n}", "GEMM_EXTRA_ARGS": ""}
    else:
        names = sorted(used)
        for chosen in itertools.product(*(loops[name] for name in names)):
            yield dict(zip(names, chosen, strict=True))


def _fill(words: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda found: values[found.group(1)], words)


# -- the words of a case


def field(options: dict[str, str], key: str) -> str:
    """Two extents as HxW; one number stands for both."""
    parts = options[key].split(",")
    return "x".join(parts * 2 if len(parts) == 1 else parts)


def convolution(options: dict[str, str]) -> str:
    """A forward pass, both gradients and the update."""
    words = [f"training {field(options, 'kernel-size')}"]
    padding = options.get("padding", options.get("padding-lower", "0"))
    words.append(f"pad {padding}")
    if "stride" in options:
        words.append(f"stride {options['stride']}")
    words.append(field(options, "field"))
    words.append(f"{options['input-channels']}->{options['output-channels']}")
    if "conv-groups" in options:
        words.append(f"groups {options['conv-groups']}")
    words.append(f"batch {options['batch-size']}")
    alphas = [options.get(key, options.get("alpha", "")) for key in ("alpha-in", "alpha-out")]
    if any(alphas):
        words.append(f"octave {alphas[0]} to {alphas[1]}")
    return " ".join(words)


def pooling(options: dict[str, str]) -> str:
    words = [f"max pooling {field(options, 'kernel')} stride {options['stride']}"]
    if "padding-lower" in options:
        words.append(f"pad {options['padding-lower']}")
    return " ".join([*words, field(options, "field"), f"of {options['channels']} channels"])


def recurrent(kind: str, options: dict[str, str]) -> str:
    passes = "training " if options.get("phase") == "all" else ""
    return (
        f"{passes}{kind.upper()} of {options['input-size']} to {options['output-size']},"
        f" {options['sequence-size']} steps, batch {options['batch-size']}"
    )


def ctc_loss(options: dict[str, str]) -> str:
    """The loss of logits and its gradient."""
    return (
        f"CTC loss of {options['max-time']} steps, {options['num-classes']} classes,"
        f" labels of {options['max-label-length']}, batch {options['batch']}"
    )


def matrix_solver(options: dict[str, str]) -> str:
    """A triangular system of equations, or a Cholesky factor."""
    batches, rank = options.get("batches", "1"), options["a-rank"]
    if "b-rank" not in options:
        return f"Cholesky factor of {batches}x{rank}x{rank}, lower {options['lower']}"
    return (
        f"triangular solve of {batches}x{rank}x{rank} for {options['b-rank']} columns,"
        f" unknown on the {options['side']}"
    )


def product(kind: str, options: dict[str, str]) -> str:
    if kind == "gemm":
        m, k, n = (options[key] for key in "mkn")
        return f"{m}x{k} @ {k}x{n} + C"
    rows, inner, columns = (options[f"{key}-size"] for key in ("batch", "input", "output"))
    groups = f"{options['num-groups']}x" if "num-groups" in options else ""
    return f"training {groups}{rows}x{inner} @ {groups}{inner}x{columns}"


def reduction(options: dict[str, str]) -> str:
    what = {"ADD": "sum", "MAX": "max", "SQUARE_ADD": "sum of squares"}[options["operation"]]
    tiles = f" on {options['tiles-per-ipu']} tiles" if "tiles-per-ipu" in options else ""
    return f"{what} over {options['dims']} of {options['shape'].replace(',', 'x')}{tiles}"


def embedding(options: dict[str, str]) -> str:
    return f"embedding of {options['shape'].replace(',', 'x')}, {options['num-indices']} indices"


def case_of(kind: str, options: dict[str, str]) -> tuple[str, str, str]:
    """(case, data type, mark) of a benchmark."""
    dtype = {"half": "fp16", "float": "fp32"}[_type(options)]
    words, mark = _words(kind, options)
    return words, dtype, mark


def _words(kind: str, options: dict[str, str]) -> tuple[str, str]:
    """(case, mark) of a benchmark."""
    if kind in ("lstm", "gru"):
        return recurrent(kind, options), _recurrent_mark(kind, options)
    known = {
        "conv": (convolution, ""),
        "oct_conv": (convolution, OCTAVE),
        "pooling": (pooling, ""),
        "ctc_loss": (ctc_loss, ""),
        "matrix_solver": (matrix_solver, ""),
        "reduction": (reduction, ""),
        "embedding": (embedding, EMBEDDING),
        "gemm": (lambda given: product(kind, given), ""),
        "fc": (lambda given: product(kind, given), ""),
    }
    if kind not in known:
        raise ValueError(f"no case is written for add_{kind}_benchmark")
    words, mark = known[kind]
    return words(options), mark


def _recurrent_mark(kind: str, options: dict[str, str]) -> str:
    if "cell-order" in options:
        return CELLS
    if kind == "gru":
        return GRU
    return STEPWISE if options.get("phase") == "all" else ""


def _type(options: dict[str, str]) -> str:
    return next(
        (options[key] for key in ("data-type", "type", "in-type") if key in options), "half"
    )


def command_of(name: str, known: dict[str, Command]) -> Command:
    """What a result's benchmark runs; functions of the file make some names out of others."""
    if name in known:
        return known[name]
    if match := re.fullmatch(r"(triangular_solve_\w+)_(left|right)", name):
        kind, options = known[match.group(1)]
        return kind, {**options, "side": match.group(2)}
    match = re.fullmatch(r"cholesky_batch_(\d+)_dim_(\d+)_block_\d+_lower_(\w+)_type_(\w+)", name)
    if match is None:
        raise ValueError(f"nothing in CMakeLists.txt makes {name}")
    keys = ("batches", "a-rank", "lower", "data-type")
    return "matrix_solver", dict(zip(keys, match.groups(), strict=True))


def registered(checkout: Path) -> list[Registered]:
    """All results of the source, in its order."""
    known = commands((checkout / "tests" / "CMakeLists.txt").read_text())
    tests = []
    for line in (checkout / "tests" / "benchmark_results.csv").read_text().splitlines():
        if line.startswith("#") or not line:
            continue
        target, _, name, cycles, _, total, _, fullest, _ = line.split(",")
        kind, options = command_of(name, known)
        case, dtype, mark = case_of(kind, options)
        measured = int(cycles), int(total), int(fullest)
        tests.append(Registered(name, MACHINES[target], dtype, case, *measured, mark))
    return tests


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="of poplibs at commit 8dcde1e")
    benchmarks = registered(parser.parse_args().checkout)
    with FILE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [one.name for one in fields(Registered)]
        writer.writerow(names)
        writer.writerows([getattr(row, name) for name in names] for row in benchmarks)
    print(f"{len(benchmarks)} benchmarks: {FILE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
