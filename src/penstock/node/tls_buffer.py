"""What asyncio sets aside for each connection with TLS: less of it, as most connections are idle most of the time."""

from __future__ import annotations

import asyncio
from asyncio.sslproto import SSLProtocol

__all__ = ["TLS_BUFFER_BYTES", "shrink_buffer"]

TLS_BUFFER_BYTES = 32 * 1024
"""Two TLS records of the longest kind. Measured, a pipeline of requests is as fast as with asyncio's 256 KiB."""


def shrink_buffer(transport: asyncio.BaseTransport) -> None:
    """Let a connection's TLS receive into a small buffer. Does nothing without TLS.

    asyncio keeps 256 KiB for each of them, and has no option for it: a thousand idle connections were 276 MiB, and are
    58. It reads the size from the object, the class has the default; the names are those of Python 3.11 to 3.14.
    """
    protocol = getattr(transport, "_ssl_protocol", None)
    if isinstance(protocol, SSLProtocol) and hasattr(protocol, "_ssl_buffer"):
        buffer = bytearray(TLS_BUFFER_BYTES)
        vars(protocol).update(max_size=len(buffer), _ssl_buffer=buffer, _ssl_buffer_view=memoryview(buffer))
