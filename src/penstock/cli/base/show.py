"""Formats of results as JSON and as one line of text, and warnings on standard error.

Commands print results with `print` on standard output: text, or with --json the result of `format_json_line`. They
report problems with `warn`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

from penstock.cli.base.logs import log_as_json

__all__ = ["format_json_line", "format_one_line", "warn"]


def format_json_line(content: Mapping[str, Any]) -> str:
    """Return an object as one line of JSON, without escapes for characters outside ASCII."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False)


def warn(sentence: str, level: int = logging.WARNING) -> None:
    """Print a problem on standard error: in one line with the prefix `penstock:`, or as JSON if the log is JSON."""
    line = " ".join(sentence.split())
    if not log_as_json(line, level):
        print(f"penstock: {line}", file=sys.stderr)


def format_one_line(content: bytes | None, width: int) -> str:
    """Return bytes as at most `width` printable characters; `…` marks a cut."""
    if content is None:
        return ""
    # A character has at most four bytes: a value of megabytes is not decoded completely for its first words.
    text = content[: 4 * width + 4].decode("utf-8", "backslashreplace")
    shown = text[: width + 1]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    return shown if len(shown) <= width and len(text) <= width else shown[: width - 1] + "…"
