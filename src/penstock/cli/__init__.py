"""The command line: the same calls as text and JSON.

In: commands, their options and output. Out: whatever a Python program can call too.
"""

import sys
from collections.abc import Sequence

from penstock.version import __version__

__all__ = ["ORDER", "main"]

ORDER = ("base", "capture", "bucket", "node", "pipeline")
"""The packages: each knows those before it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 1 failure at run time, 2 wrong usage, 130 interrupted.

    Args:
        arguments: those of the process, if not given.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:  # scripts ask for it often: without the commands it takes a tenth of the time
        print(f"penstock {__version__}")
        return 0
    from penstock.cli.entry import run_command

    return run_command(given)
