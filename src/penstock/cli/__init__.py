"""The command line: the library's calls as commands that print text or JSON.

In: commands, their options and their output. Out: logic that a Python program can call too.
"""

import sys
from collections.abc import Sequence

from penstock.cli.base.show import print_text
from penstock.version import describe_version

__all__ = ["ORDER", "main"]

ORDER = ("base", "outputs", "capture", "bucket", "node", "cluster", "pipeline", "doctor", "top")
"""The packages. Each package imports only from those before it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the words after `penstock`; default: the arguments of the process.

    Returns:
        The exit code: a member of ExitCode.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:  # scripts often request it: without loading the commands it takes a tenth of the time
        print_text(describe_version())
        return 0
    from penstock.cli.entry import run_command

    return run_command(given)
