"""The error of a model that does not fit, with what would free most."""

from __future__ import annotations

from ipu_exec.errors import OutOfMemoryError
from ipuscope.profiler import ProfileError, open_report


def with_relief(error: OutOfMemoryError) -> OutOfMemoryError:
    """The error with a line for each change that frees memory, by the profile that it names.

    The error itself where there is no profile, or none that says so.
    """
    if not error.profile_path:
        return error
    from ipuscope.planner.advice.relief import fewest_changes, in_words, relief

    try:
        with open_report(error.profile_path) as report:
            lines, together = in_words(relief(report)), fewest_changes(report)
    except (ProfileError, ValueError):
        return error
    if not lines:
        return error
    said = "\n  ".join(["What frees most of that tile:", *lines])
    if together:
        said += f"\nThe fewest changes with which every IPU fits: {together}"
    return OutOfMemoryError(f"{error}\n{said}", profile_path=error.profile_path)
