"""Signals for work that must not be interrupted by an exception, such as Spark's calls to Java."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import FrameType
from typing import TypeVar

__all__ = ["run_interruptibly", "run_until_signal"]

T = TypeVar("T")


async def run_until_signal(work: Callable[[asyncio.Event], Awaitable[T]], grace: float = 0.0) -> T | None:
    """Run work on the event loop until it ends, or until SIGINT or SIGTERM.

    Args:
        work: called with an event that a signal sets.
        grace: seconds after a signal before the work is cancelled.

    Returns:
        The result of the work, None if it was cancelled.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(work(stop))

    def end() -> None:
        stop.set()
        loop.call_later(grace, running.cancel)

    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, end)
    try:
        await asyncio.wait([running])
        return None if running.cancelled() else running.result()
    finally:
        running.cancel()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)


def run_interruptibly(work: Callable[[Callable[[], None]], T]) -> T:
    """Run work on its own thread, while the main thread waits for signals.

    A second signal raises KeyboardInterrupt in the main thread at once; the other thread ends with the process.

    Args:
        work: called with `check`. It must call `check()` from time to time, where it can stop: `check` raises
            KeyboardInterrupt after SIGINT, SIGTERM or SIGHUP.

    Returns:
        The result of `work`.
    """
    interrupted = threading.Event()
    outcome: Future[T] = Future()

    def check() -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt

    def on_signal(number: int, frame: FrameType | None) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()
        print("Stopping; interrupt again to stop at once.", file=sys.stderr)

    def main() -> None:
        try:
            outcome.set_result(work(check))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            outcome.set_exception(error)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, on_signal) for number in numbers]
    try:
        threading.Thread(target=main, name="penstock-work", daemon=True).start()
        return outcome.result()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
