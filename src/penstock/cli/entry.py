"""The entry point of `penstock`: exit codes, and errors as one sentence on standard error."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from functools import cache
from importlib import import_module
from types import TracebackType
from typing import Any

import typer
import typer.main

from penstock.cli.base.app import COMPLETION_VARIABLE, app
from penstock.cli.base.exit_codes import ExitCode
from penstock.cli.base.interrupt import ending_on_sigterm
from penstock.cli.base.logs import logging_on_stderr
from penstock.cli.base.show import warn
from penstock.errors import Error, UsageError
from penstock.extras import describe_missing_extra

COMMANDS = (
    *("node.serve", "node.user", "node.tls", "node.stats", "node.streams", "node.compact", "node.check"),
    *("cluster.replicate", "cluster.move", "cluster.failover", "cluster.cluster_commands", "cluster.xdcr"),
    *(
        "bucket.load",
        "bucket.tail",
        "bucket.dump",
        "bucket.positions",
        "capture.decode",
        "bucket.workload",
        "pipeline",
        "bucket.demo",
        "doctor",
        "top",
        "outputs.schema_command",
        "completion_command",
    ),
)
"""Modules of the commands, in the order of `penstock --help`."""


def register_commands() -> None:
    """Import the modules of the commands, which registers them with the application."""
    for command in COMMANDS:
        import_module(f"penstock.cli.{command}")


def run_command(given: list[str]) -> int:
    """Return the exit code of a command.

    Args:
        given: the words after `penstock` on the command line.
    """
    register_commands()
    for stream in (sys.stdout, sys.stderr):
        # Keys and values are UTF-8, also where the locale has another encoding.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    debug = "--debug" in given
    before, sys.excepthook = sys.excepthook, sys.excepthook if debug else _report_crash
    with logging_on_stderr(), ending_on_sigterm():
        code = _invoke(given, debug)
    sys.excepthook = before  # not in a finally clause: an unexpected exception must reach our hook
    return code


@cache
def _build_group() -> Any:
    """Return the group of all commands. Cached: building it takes longer than a short command."""
    if COMPLETION_VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined] # no other public module has it

        completion_init()
    return typer.main.get_command(app)


def _invoke(given: list[str], debug: bool) -> int:
    try:
        code = _build_group().main(args=given, prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe. Without this, flushing the buffer at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILURE
    except typer.TyperException as error:
        return _report_error(_describe_usage_error(error), error, ExitCode.WRONG_USAGE, debug)
    except UsageError as error:
        return _report_error(str(error), error, ExitCode.WRONG_USAGE, debug)
    except Error as error:
        return _report_error(str(error), error, ExitCode.FAILURE, debug)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _report_error(f"{where}{error.strerror or error}", error, ExitCode.FAILURE, debug)
    except ModuleNotFoundError as error:
        missing = describe_missing_extra(error)
        if missing is None:
            raise
        return _report_error(f"this needs {missing}", error, ExitCode.FAILURE, debug)


def _describe_usage_error(error: typer.TyperException) -> str:
    """Return a sentence about the error in the command line, with the value found and the --help to read."""
    sentence = error.format_message().removesuffix(".").replace("Value error, ", "")
    checks = getattr(error.__cause__, "errors", None)
    if checks is not None and "found" not in sentence:
        found = checks()[0].get("input")
        sentence += f", found {found!r}" if repr(found) not in sentence else ""
    command = getattr(getattr(error, "ctx", None), "command_path", "penstock")
    return f"{sentence} (see {command} --help)"


def _report_error(sentence: str, error: BaseException, code: int, debug: bool) -> int:
    """Return `code` after printing one line about an error."""
    if debug:
        traceback.print_exception(error)
    warn(sentence, logging.ERROR)
    return code


def _report_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report an unexpected exception in one sentence, which names the option that shows the traceback."""
    _report_error(
        f"unexpected {kind.__name__}: {error} (penstock --debug … prints the traceback)",
        error,
        ExitCode.FAILURE,
        debug=False,
    )
