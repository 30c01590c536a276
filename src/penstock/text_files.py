"""Text that people bring, in files and on standard input: UTF-8, one rule for all commands.

Byte order marks (BOM) at the beginning of a text or of a line are left out: joined files have several. Another encoding
is refused, with the byte that shows it. A line ends with LF or CR LF, never with another character that Unicode calls a
line end: those are content, as is every blank. The last line needs no end.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from penstock.errors import UsageError

MOST_LINE_BYTES = 256 * 1024 * 1024
"""Limit of a line: the largest document, 20 MiB, with an escape of six bytes for each of its bytes, and its key."""

_LINE_MARKS = re.compile("^\ufeff+", re.MULTILINE)
_MARKS = {  # those of UTF-32 first: one begins as that of UTF-16 does
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_PROBE_BYTES = 4
"""Without a mark, UTF-16 and UTF-32 have a zero among so many bytes, if the text begins with ASCII."""


def decode_text(
    content: bytes, place: str, expected: str, *, raises: type[UsageError] = UsageError, is_secret: bool = False
) -> str:
    """Return UTF-8 as text, without byte order marks at the beginnings of its lines.

    Args:
        content: the bytes.
        place: their place, for the error.
        expected: the expected kind of text, for the error.
        raises: the error.
        is_secret: the error shows no byte of the content.

    Returns:
        The text. Raises the given error if the bytes are not UTF-8, or have a zero byte at the beginning.
    """
    fault = find_other_encoding(content)
    if fault is None:
        try:
            return _LINE_MARKS.sub("", content.decode())
        except UnicodeDecodeError as error:
            at = error.start
            fault = f"byte {at + 1}{'' if is_secret else f', 0x{content[at]:02x},'} is not UTF-8"
    raise raises(f"{place}: {fault}; expected {expected} in UTF-8")


def find_other_encoding(begin: bytes) -> str | None:
    """Return how the first bytes of a text show UTF-16 or UTF-32; None if they do not."""
    for mark, name in _MARKS.items():
        if begin.startswith(mark):
            return f"byte 1, 0x{mark[0]:02x}, begins the byte order mark of {name}"
    at = begin.find(0, 0, _PROBE_BYTES)
    return None if at < 0 else f"byte {at + 1} is 0x00, as in UTF-16 or UTF-32"


def read_text_file(path: str | Path, expected: str, most_bytes: int, *, is_secret: bool = False) -> str:
    """Return the text of a small file.

    Args:
        path: the file.
        expected: the expected kind of file, for the error.
        most_bytes: the limit of its size.
        is_secret: an error shows no byte of the content.

    Raises:
        UsageError: the file cannot be read, is larger, or is not UTF-8.
    """
    try:
        with Path(path).open("rb") as file:
            return read_text(file, str(path), expected, most_bytes, is_secret=is_secret)
    except (OSError, ValueError) as error:  # ValueError: a zero in the path
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise UsageError(f"{path}: {reason}, expected {expected}") from None


def read_text(source: BinaryIO, place: str, expected: str, most_bytes: int, *, is_secret: bool = False) -> str:
    """Return the text of an open file, or of standard input.

    Args:
        source: the file, in binary mode.
        place: its name, for the error.
        expected: the expected kind of file, for the error.
        most_bytes: the limit of its size.
        is_secret: an error shows no byte of the content.

    Raises:
        UsageError: the file is larger, or is not UTF-8.
    """
    content = source.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise UsageError(f"{place}: more than {most_bytes} bytes, expected {expected}")
    return decode_text(content, place, expected, is_secret=is_secret)


def split_lines(text: str) -> list[str]:
    """Return the lines of a text without their ends."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


class LineReader:
    """Reads the lines of a file with their ends, and counts their bytes. Byte order marks are left out.

    A line that is not UTF-8 is not refused here: a reader of lines may skip it.

    Attributes:
        nbytes: bytes that were read.
        total: size of the file; 0 if it is unknown, as for a pipe.
    """

    def __init__(self, source: BinaryIO, place: str, expected: str = "lines of JSON") -> None:
        self._source, self._place, self._expected = source, place, expected
        self.nbytes = 0
        self.total = 0
        with suppress(OSError):  # not a file of the system
            status = os.fstat(source.fileno())
            self.total = status.st_size if stat.S_ISREG(status.st_mode) else 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield each line.

        Raises:
            UsageError: the file begins in another encoding, or a line is too long.
        """
        most, mark = MOST_LINE_BYTES, codecs.BOM_UTF8[0]
        for number, line in enumerate(iter(partial(self._source.readline, most + 1), b""), 1):
            size = len(line)
            if number == 1 and (fault := find_other_encoding(line)) is not None:
                raise UsageError(f"{self._place}: {fault}; expected {self._expected} in UTF-8")
            if size > most:
                raise UsageError(f"{self._place} line {number}: more than {most} bytes, the limit")
            self.nbytes += size
            yield _remove_marks(line) if line[0] == mark else line


def _remove_marks(line: bytes) -> bytes:
    while line.startswith(codecs.BOM_UTF8):
        line = line.removeprefix(codecs.BOM_UTF8)
    return line
