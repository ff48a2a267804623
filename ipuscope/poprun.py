"""`poprun`: PopRun's command line, for instances of a PopTorch script on modelled IPUs.

``poprun --num-instances 4 --num-replicas 8 python3 train.py`` is ``ipu-run --instances 4 --replicas
8 train.py``. Flags for IPU partitions, MPI and NUMA nodes are accepted and ignored with one
message.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence

from ipuscope.help_text import HelpText
from ipuscope.run_arguments import add_rendezvous
from ipuscope.words import Parser, add_version, not_negative, positive

_EXAMPLE = """example:
  poprun --num-instances 4 --num-replicas 8 --ipus-per-replica 2 python3 train.py --epochs 3
the same:
  ipu-run --instances 4 --replicas 8 --ipus-per-replica 2 train.py --epochs 3"""

# Accepted without effect. Those to which PopRun gives a value take one.
_WITHOUT_MEANING = (
    *("host", "hosts", "host-subnet", "mpi-global-args", "mpi-local-args"),
    *("vipu-partition", "vipu-allocation", "vipu-cluster"),
    *("vipu-server-host", "vipu-server-port", "vipu-server-timeout"),
    *("update-partition", "remove-partition", "reset-partition", "process-placement"),
    *("numa-aware", "num-ilds", "sync-type", "synchronisation-mode", "interactive", "tag-output"),
    "run-each-instance-with",
)
# which instance prints, or prints to stdout, alone: by the variable that tells the instances
PRINTING_ALONE = {
    "IPUSCOPE_OUTPUT_FROM": "--only-output-from-instance",
    "IPUSCOPE_STDOUT_FROM": "--only-stdout-from-instance",
}
_SWITCHES = ("print-topology", "allow-oversubscribing-host-cores")
_LOUDNESS = (("-v", "-vv", "-vvv", "--vv", "--verbose"), ("--quiet",))  # take no value
_YES = ("yes", "true", "on", "1")


def as_ipu_run(argv: Sequence[str] | None = None) -> list[str]:
    """The arguments of `ipu-run` for those of `poprun`; SystemExit(2) if it runs no Python."""
    parser = poprun_parser()
    args = parser.parse_args(argv)
    program = list(args.program)
    script = _script(program)
    if script is None:
        print(
            "poprun: error: it runs a Python script: poprun --num-instances 2 python3 train.py, not"
            f" {' '.join(program) or 'nothing'}",
            file=sys.stderr,
        )
        raise SystemExit(2)
    _name_ignored(args)
    forwarded = [f"--instances={args.num_instances}"]
    forwarded.append(f"--replicas={args.num_replicas or args.num_instances}")
    forwarded.append(f"--ipus-per-replica={args.ipus_per_replica}")
    for name in ("nnodes", "node_rank", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf"):
        value = getattr(args, name)
        if value not in (None, ""):
            forwarded.append(f"--{name.replace('_', '-')}={value}")
    for variable, name in PRINTING_ALONE.items():
        if (instance := getattr(args, variable)) is not None:
            if instance >= args.num_instances:
                parser.error(f"{name} {instance}: instances are 0 to {args.num_instances - 1}")
            os.environ[variable] = str(instance)
    if args.executable_cache_path:
        os.environ["POPTORCH_CACHE_DIR"] = os.path.abspath(args.executable_cache_path)
    if str(args.offline_mode).lower() in _YES:
        forwarded.append("--compile-only")
    return [*forwarded, *script]


def poprun_parser() -> argparse.ArgumentParser:
    """The parser of `poprun`."""
    parser = Parser(
        prog="poprun",
        description="Run several instances of a PopTorch script on modelled IPUs.",
        epilog=_EXAMPLE,
        formatter_class=HelpText,
        allow_abbrev=False,
    )
    add_version(parser)
    parser.add_argument("--num-instances", "-n", type=positive, default=1, metavar="I")
    parser.add_argument("--num-replicas", "-r", type=positive, metavar="R", help="of all instances")
    parser.add_argument("--ipus-per-replica", type=positive, default=1, metavar="K")
    parser.add_argument("--num-local-instances", metavar="N", help="follows from the hosts")
    parser.add_argument("--num-local-replicas", metavar="N", help="follows from the instances")
    parser.add_argument("--executable-cache-path", metavar="DIR", help="shared by all instances")
    parser.add_argument("--offline-mode", nargs="?", const="yes", default="no", help="only compile")
    for variable, name in PRINTING_ALONE.items():
        words = "print its lines alone" if "output" in name else "print its stdout alone"
        parser.add_argument(name, dest=variable, type=not_negative, metavar="N", help=words)
    add_rendezvous(parser.add_argument_group("several hosts (torchrun's options)"))
    hidden = parser.add_argument_group("taken, without meaning on modelled IPUs")
    for name in _WITHOUT_MEANING:
        hidden.add_argument(f"--{name}", action="append", metavar="...", help=argparse.SUPPRESS)
    for name in _SWITCHES:
        hidden.add_argument(f"--{name}", nargs="?", const="yes", help=argparse.SUPPRESS)
    for names in _LOUDNESS:
        hidden.add_argument(*names, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("program", nargs=argparse.REMAINDER, help="python3 script.py ...")
    return parser


def _script(program: list[str]) -> list[str] | None:
    """Script or module and its arguments, without the interpreter; None if it is not Python."""
    if program and program[0] == "--":
        program = program[1:]
    if program and re.fullmatch(r"python[0-9.]*", os.path.basename(program[0])):
        program = program[1:]
        while program and program[0] in ("-u", "-B", "-O"):
            program = program[1:]
    is_module = program[:1] == ["-m"] and len(program) > 1
    return program if is_module or (program and program[0].endswith(".py")) else None


def _name_ignored(args: argparse.Namespace) -> None:
    names = [*_WITHOUT_MEANING, *_SWITCHES, "num-local-instances", "num-local-replicas"]
    ignored = [f"--{n}" for n in names if getattr(args, n.replace("-", "_")) is not None]
    if ignored:
        print(
            f"poprun: ignored, as modelled IPUs do not need them: {', '.join(ignored)}",
            file=sys.stderr,
        )
