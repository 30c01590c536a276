"""Large pieces of memory, copied while other Python threads run.

`bytes(view)` and most of `bytes.join` hold the GIL while they copy: for 18 MiB several milliseconds, in which no
event loop does anything.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.wire.codec import native
from penstock.wire.codec.frame import Buffer

__all__ = ["copy_into", "join_large", "plain_bytes", "touch"]

_PAGE = 4096
_join = getattr(native.extension, "join", None)  # an extension module of an older release has no such function


def join_large(*parts: Buffer) -> bytes:
    """Return what lies in some buffers, behind each other."""
    joined: bytes = b"".join(parts) if _join is None else _join(parts)
    return joined


def plain_bytes(value: Buffer) -> bytes:
    """Return a value as bytes: a copy, unless it is such."""
    return value if isinstance(value, bytes) else join_large(value)


def copy_into(target: memoryview, parts: Iterable[Buffer]) -> None:
    """Put what lies in some buffers behind each other into another buffer, from its beginning."""
    at = 0
    room = np.frombuffer(target, np.uint8)
    for part in parts:
        room[at : at + len(part)] = np.frombuffer(part, np.uint8) if part else ()
        at += len(part)


def touch(view: Buffer) -> None:
    """Read a byte of each page, so that all of them are in memory when the event loop reads them."""
    if view:
        np.frombuffer(view, np.uint8)[::_PAGE].max()
