"""Copies large pieces of memory while other Python threads run.

`bytes(view)` and most of `bytes.join` hold the GIL while they copy: for 18 MiB several milliseconds, in which no
event loop does anything.
"""

from __future__ import annotations

import numpy as np

from penstock.wire.codec import native
from penstock.wire.codec.frame import Buffer

_PAGE = 4096
_join = getattr(native.extension, "join", None)  # an extension module of an older release has no such function


def join_buffers(*parts: Buffer) -> bytes:
    """Return the bytes of the buffers, one after the other."""
    joined: bytes = b"".join(parts) if _join is None else _join(parts)
    return joined


def to_bytes(value: Buffer) -> bytes:
    """Return a value as bytes: the value itself if it is bytes, otherwise a copy."""
    return value if isinstance(value, bytes) else join_buffers(value)


def touch_pages(view: Buffer) -> None:
    """Read a byte of each page, so that all pages are in memory when the event loop reads them."""
    if view:
        np.frombuffer(view, np.uint8)[::_PAGE].max()
