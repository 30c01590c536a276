"""`penstock`, as the shell calls it: exit codes, and errors as one sentence on standard error."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import TracebackType

import typer
import typer.main

from penstock.cli.base.app import app
from penstock.errors import Error, UsageError
from penstock.extras import missing_extra

__all__ = ["register_commands", "run_command"]

COMMANDS = (
    *("node.serve", "node.user", "node.tls", "node.stats", "node.streams", "node.compact", "node.check"),
    *("bucket.load", "bucket.tail", "capture.decode", "bucket.workload", "pipeline", "bucket.demo"),
)
"""Modules of the commands. Help lists them in this order."""

FAILURE, WRONG_USAGE = 1, 2
INTERRUPTED = 130
"""128 and the signal's number, as shells report it."""


def register_commands() -> None:
    """Import the commands; that registers them with the application."""
    for command in COMMANDS:
        import_module(f"penstock.cli.{command}")


def run_command(given: list[str]) -> int:
    """Run a command and return its exit code. given: the arguments of the process."""
    register_commands()
    for stream in (sys.stdout, sys.stderr):
        # Keys and values are UTF-8, whatever the terminal is set to.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    debug = "--debug" in given
    before, sys.excepthook = sys.excepthook, sys.excepthook if debug else _last_words
    with _log_on_stderr():
        code = _run(given, debug)
    sys.excepthook = before  # only here: what was raised goes through ours
    return code


def _run(given: list[str], debug: bool) -> int:
    try:
        code = typer.main.get_command(app).main(args=given, prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough. What is still buffered must not fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except typer.TyperException as error:
        return _complain(_misuse(error), error, WRONG_USAGE, debug)
    except UsageError as error:
        return _complain(str(error), error, WRONG_USAGE, debug)
    except Error as error:
        return _complain(str(error), error, FAILURE, debug)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror or error}", error, FAILURE, debug)
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        return _complain(f"this needs {missing}", error, FAILURE, debug)


def _misuse(error: typer.TyperException) -> str:
    """Return what is wrong with the command line, with what was found there and where to read on."""
    sentence = error.format_message().removesuffix(".").replace("Value error, ", "")
    checks = getattr(error.__cause__, "errors", None)
    if checks is not None and "found" not in sentence:
        found = checks()[0].get("input")
        sentence += f", found {found!r}" if repr(found) not in sentence else ""
    command = getattr(getattr(error, "ctx", None), "command_path", "penstock")
    return f"{sentence} (see {command} --help)"


def _complain(sentence: str, error: BaseException, code: int, debug: bool) -> int:
    """Print one line about an error; return `code`."""
    if debug:
        traceback.print_exception(error)
    print(f"penstock: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def _last_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report a mistake of ours: users get a sentence that says how to see more, never pages of code."""
    _complain(f"unexpected {kind.__name__}: {error} (penstock --debug … shows where)", error, FAILURE, debug=False)


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Show warnings of the library, such as that a node is being waited for, while a command runs."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("penstock: %(message)s"))
    logger = logging.getLogger("penstock")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
