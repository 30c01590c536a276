"""Work that a cancelled caller does not leave behind: it waits for its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finish_in_thread(work: Callable[[], T]) -> T:
    """Return the result of work on another thread.

    A thread cannot be cancelled. So a cancelled caller waits for its end: a write would go on beside the next one.
    """
    return await finish_within(None, asyncio.to_thread(work))


async def finish_within(seconds: float | None, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work. A cancelled caller waits for its end.

    Args:
        seconds: the longest wait of a cancelled caller, after which the work is cancelled too; None: any time.
        work: the work.
    """
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running], timeout=seconds)
        running.cancel()
        raise
