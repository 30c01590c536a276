"""Accepts connections, and continues to do so after the process has run out of file descriptors."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Callable
from typing import Final

from penstock.node.transport.log_limit import LogLimit

logger = logging.getLogger("penstock.node")

_BACKLOG: Final = 4096  # with asyncio's 100, a crowd of clients waits a second for every 100
_ACCEPTS_PER_TURN: Final = 64  # so that a crowd of clients does not block the event loop
_RETRY_SECONDS: Final = 1.0
_OTHER_FILES: Final = 768  # kept for 512 HTTP connections and for the files of buckets
_WARNING_LIMIT: Final = 4096  # connections; a lower limit is logged as a warning


class Acceptor:
    """Accepts the connections of one port.

    Out of file descriptors, asyncio's own server logs thousands of errors a second (Python 3.11, `_accept_connection`).
    This class logs one line a minute, and tries again after a second.

    Attributes:
        port: the number of the port.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        port: int,
        factory: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        """Bind a port, without listening.

        Args:
            loop: the event loop.
            host: the address.
            port: the port, 0 for any free one.
            factory: makes the protocol of a connection.

        Raises:
            OSError: the address is taken, or is not of this machine.
        """
        self._loop = loop
        self._factory = factory
        self._log = LogLimit(logger, loop.time)
        self._retry: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio sets TCP_NODELAY only where the protocol is named; without it, replies wait 40 ms for an ACK.
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if ":" in host:
                self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            self._socket.setblocking(False)
            self._socket.bind((host, port))
        except BaseException:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]

    def start(self) -> None:
        """Listen, and accept connections."""
        self._socket.listen(_BACKLOG)
        self._loop.add_reader(self._socket.fileno(), self._accept)

    async def close(self) -> None:
        """Stop listening. When this returns, all accepted connections have their protocols."""
        if self._socket.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._log.warning(f"port {self.port}: no connection can be accepted: {os.strerror(error.errno or 0)}")
                self._loop.remove_reader(self._socket.fileno())
                self._retry = self._loop.call_later(_RETRY_SECONDS, self._resume)
                return
            task: asyncio.Task[object] = self._loop.create_task(self._connect(accepted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _resume(self) -> None:
        self._retry = None
        self._loop.add_reader(self._socket.fileno(), self._accept)

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, accepted)
        except OSError:
            accepted.close()  # the peer has reset it already


def raise_file_limit(wanted: int) -> int:
    """Raise the limit of open files to a number, or as far as the hard limit allows.

    Args:
        wanted: the number of files.

    Returns:
        The number of files that the process may open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):  # the system's own limit is lower
        return soft
    return allowed


def limit_connections(wanted: int) -> int:
    """Return the number of key-value connections that a node may have, after raising the limit of open files.

    With fewer files than needed, some are kept for other purposes: without a free descriptor, a node cannot write its
    buckets.

    Args:
        wanted: the number of connections.
    """
    files = raise_file_limit(wanted + _OTHER_FILES)
    places = min(wanted, max(files - _OTHER_FILES, files // 2))
    if places < wanted:
        level = logging.WARNING if places < _WARNING_LIMIT else logging.INFO
        text = "this process may open %d files: at most %d connections instead of %d; raise the limit (ulimit -n)"
        logger.log(level, text, files, places, wanted)
    return places
