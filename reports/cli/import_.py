"""Import a profile of real IPUs, with the Poplar SDK's own reader.

Where the SDK is installed, its module pva opens PROFILE, and what its object model has is written
in the format of all other commands. What it lacks stays empty; the result's warnings name it. No
profile of a real IPU was available to test this: docs/how-to/real-profiles.md says what to send if
one fails.
"""

from __future__ import annotations

import argparse
import os

from ipuscope.reports.cli import common

HELP = "read a profile of real IPUs with the SDK's pva, and write it for these commands"
EXAMPLES = """  ipu-report import training/profile.pop -o imported.pop
  ipu-report import training/profile.pop --trace host.pvti -o imported.pop
  ipu-report import training/profile.pop --anonymise -o to-send.pop
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("profile", metavar="PROFILE", help="a profile.pop of the Poplar SDK")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="what to write")
    parser.add_argument(
        "--debug", metavar="FILE", help="its debug.cbor (default: the one beside it, if any)"
    )
    parser.add_argument("--trace", metavar="FILE", help="the .pvti file of the run")
    words = "numbers instead of names, and FILE.txt with what was met"
    common.add_flag(parser, "--anonymise", words)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; the result is its exit code."""
    from ipuscope.profiler import ProfileError
    from ipuscope.profiler.pva import debug_info
    from ipuscope.profiler.pva.import_profile import import_profile
    from ipuscope.waiting import waiting

    if not os.path.isfile(args.profile):
        raise ProfileError(args.profile, "it is not a file", "Give a profile.pop")
    try:
        import pva  # type: ignore[import-not-found]  # the vendor's
    except ImportError as error:
        raise common.CommandError(
            "the Poplar SDK's pva is not installed: enable the SDK (source .../enable.sh) in the"
            " shell that runs this. Profiles of IPUscope need no import"
        ) from error
    if os.path.exists(args.output) and os.path.samefile(args.profile, args.output):
        raise common.CommandError(f"{args.output} is the profile itself: give -o another name")
    beside = os.path.join(os.path.dirname(args.profile), debug_info.NAME)
    debug = args.debug or (beside if os.path.isfile(beside) else None)
    with waiting("importing", common.PATIENCE):
        met = import_profile(pva, args.profile, args.output, debug, args.trace, args.anonymise)
    lines = "\n".join(met.words) + "\n"
    print(lines, end="")
    if args.anonymise:
        with open(f"{args.output}.txt", "w", encoding="utf-8") as file:
            file.write(lines)
    return common.OK
