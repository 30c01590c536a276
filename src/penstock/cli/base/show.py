"""Formats of results as JSON and as one line of text, and warnings on standard error.

Commands print results with `print_text`: text, or with --json the result of `format_json_line`. They report problems
with `warn`. Both escape the characters by which a name could change the other output of a terminal.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

from penstock.cli.base.logs import log_as_json
from penstock.names import escape_bytes, escape_text, make_json_printable, make_printable


def format_json_line(content: Mapping[str, Any]) -> str:
    """Return an object as one line of JSON, without escapes for printable characters outside ASCII."""
    return make_json_printable(json.dumps(content, ensure_ascii=False, allow_nan=False))


def print_text(text: object, *, on_stderr: bool = False) -> None:
    """Print lines of text or JSON. Other unprintable characters than line breaks are escaped."""
    shown = "\n".join(map(make_printable, str(text).split("\n")))
    print(shown, file=sys.stderr if on_stderr else sys.stdout, flush=True)


_LONGEST_KEY = 4 * 250
"""Characters of an escaped key."""


def format_name(name: str | bytes, width: int = _LONGEST_KEY) -> str:
    """Return a name as at most `width` printable characters, from which it can be read back; `…` marks a cut."""
    shown = escape_text(name) if isinstance(name, str) else escape_bytes(name)
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def warn(sentence: str, level: int = logging.WARNING) -> None:
    """Print a problem on standard error: in one line with the prefix `penstock:`, or as JSON if the log is JSON."""
    line = " ".join(sentence.split())
    if not log_as_json(line, level):
        print_text(f"penstock: {line}", on_stderr=True)


def format_one_line(content: bytes | None, width: int) -> str:
    """Return bytes as at most `width` printable characters; `…` marks a cut."""
    if content is None:
        return ""
    # A character has at most four bytes: a value of megabytes is not decoded completely for its first words.
    text = content[: 4 * width + 4].decode("utf-8", "backslashreplace")
    shown = make_printable(text[: width + 1])
    return shown if len(shown) <= width and len(text) <= width else shown[: width - 1] + "…"
