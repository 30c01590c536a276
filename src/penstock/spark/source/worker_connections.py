"""What a Spark worker keeps from one task to the next: an event loop in a thread, and connections to nodes.

Workers outlive a batch, and which of them gets a partition changes from batch to batch, so each may come to have a
connection to each node. What Spark forks has nothing of what its parent had.
"""

from __future__ import annotations

import os
import threading

from penstock.client.blocking import LoopThread
from penstock.client.streams.session_pool import SessionPool

_MOST, _SECONDS = 8, 60.0
"""Connections that wait in a process, and for how long: a trigger's interval is seldom longer, and making one is cheap
against that."""


class _Kept:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = LoopThread("penstock-task").__enter__()
        self.sessions = SessionPool(_MOST, _SECONDS)


_lock = threading.Lock()
_kept: _Kept | None = None


def kept() -> tuple[LoopThread, SessionPool]:
    """Return this process's event loop, and what is to be used there alone."""
    global _kept  # noqa: PLW0603 - it is the process's
    with _lock:
        if _kept is None or _kept.pid != os.getpid():
            _kept = _Kept()
        return _kept.loop, _kept.sessions
