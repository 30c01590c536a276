"""Waits for files and sockets, and for conditions that nothing announces."""

import asyncio
import selectors
from collections.abc import Callable, Iterable
from typing import Any

from tests.patience import PATIENCE

_BETWEEN_CHECKS = 0.01
"""Seconds between two checks of a condition: few enough to be short, and long enough to leave the CPU to others."""


async def wait_until(condition: Callable[[], bool], *running: asyncio.Task[Any]) -> None:
    """Wait until a condition holds, and check it again and again. None of the running tasks may end before."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            assert not any(task.done() for task in running)
            await asyncio.sleep(_BETWEEN_CHECKS)


async def pass_turns(count: int = 1) -> None:
    """Let the event loop run the callbacks that are due, `count` times in a row."""
    for _ in range(count):
        await asyncio.sleep(0)


def wait_readable(files: Iterable[Any], seconds: float) -> list[Any]:
    """Return the files that can be read, empty after so many seconds without any.

    `select.select` refuses descriptors from 1024 on. Tests that end a bucket as a crash does leave descriptors open.
    """
    with selectors.DefaultSelector() as selector:
        for file in files:
            selector.register(file, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(seconds)]
