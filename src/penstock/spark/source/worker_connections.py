"""The event loop and the connections that a Spark worker keeps from one task to the next.

Spark reuses a worker for several batches, and gives it other partitions in each batch. So a worker may connect to each
node in time. A process that Spark forks must not use the threads and sockets of its parent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from penstock.client.blocking import LoopThread
from penstock.client.connect.address import Address
from penstock.client.connect.client_session import generate_stream_name
from penstock.client.connect.handshake import Purpose
from penstock.client.feeds.collection_selection import StreamContent
from penstock.client.feeds.feed import Feed
from penstock.client.feeds.vbucket_stream import EndRule, StreamTarget
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.session_pool import SessionPool
from penstock.wire.codec.constants import Dialect

_MAX_IDLE_CONNECTIONS, _IDLE_SECONDS = 8, 60.0
"""The most idle connections of a process, and the time that each may stay idle.

An interval between triggers is seldom longer than a minute, and a new connection is cheap in comparison."""


class _WorkerState:
    """The event loop and the connections of one process.

    Attributes:
        pid: the process that made them. After a fork it differs from the process's own id.
        loop: the thread with the event loop.
        sessions: the connections; only the event loop may use them.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = LoopThread("penstock-task").__enter__()
        self.sessions = SessionPool(_MAX_IDLE_CONNECTIONS, _IDLE_SECONDS)


_lock = threading.Lock()
_state: _WorkerState | None = None


def get_connections() -> tuple[LoopThread, SessionPool]:
    """Return this process's event loop and its connections, which only the event loop may use."""
    global _state  # noqa: PLW0603 - one state for each process
    with _lock:
        if _state is None or _state.pid != os.getpid():
            _state = _WorkerState()
        return _state.loop, _state.sessions


async def open_planned_stream(
    address: Address,
    dialect: Dialect,
    targets: Mapping[int, StreamTarget],
    content: StreamContent,
    sessions: SessionPool,
) -> ChangeStream:
    """Return a stream of exactly the planned changes.

    Args:
        address: the bucket.
        dialect: the dialect of the streams.
        targets: start, end and resume policy by vbucket.
        content: the collections and the parts of documents that the stream has.
        sessions: the connections of this process.
    """
    purpose = Purpose(
        stream_name=generate_stream_name(),
        dialect=dialect,
        collections=content.selection is not None,
        xattrs=content.xattrs,
        values=content.values,
    )
    feed = Feed(
        await sessions.count_vbuckets(address, purpose),
        targets,
        window=address.options.stream_window,
        dialect=dialect,
        end_rule=EndRule.EXACT,
        content=content,
    )
    return ChangeStream(address, feed, pool=sessions)
