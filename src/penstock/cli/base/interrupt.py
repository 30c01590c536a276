"""Signals for work that must not be interrupted by an exception, such as Spark's calls to Java."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from penstock.cli.base.exit_codes import SignalReceived
from penstock.cli.base.show import print_text

T = TypeVar("T")


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise SignalReceived while the block runs, so that a command ends as with Ctrl-C.

    Without effect outside the main thread, and where the process ignores SIGTERM or handles it already.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise SignalReceived(number)

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


async def run_until_signal(
    work: Callable[[asyncio.Event], Awaitable[T]], grace: float = 0.0, is_complete: Callable[[], bool] = lambda: True
) -> T | None:
    """Run work on the event loop until it ends, or until SIGINT or SIGTERM.

    Args:
        work: called with an event that a signal sets.
        grace: seconds after a signal before the work is cancelled.
        is_complete: called after a signal; returns whether the work has reached its goal.

    Returns:
        The result of the work, None if it was cancelled.

    Raises:
        SignalReceived: the work was cancelled before it was complete.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(work(stop))

    received: list[int] = []

    def end(number: int) -> None:
        received.append(number)
        stop.set()
        loop.call_later(grace, running.cancel)

    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, end, each)
    try:
        await asyncio.wait([running])
        if received and running.cancelled() and not is_complete():
            raise SignalReceived(received[0])
        return None if running.cancelled() else running.result()
    finally:
        running.cancel()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)


def run_interruptibly(work: Callable[[Callable[[], None]], T]) -> T:
    """Run work on its own thread, while the main thread waits for signals.

    A second signal raises SignalReceived in the main thread at once; the other thread ends with the process.

    Args:
        work: called with `check`. It must call `check()` from time to time, where it can stop: `check` raises
            SignalReceived after SIGINT, SIGTERM or SIGHUP.

    Returns:
        The result of `work`.
    """
    received: list[int] = []
    outcome: Future[T] = Future()

    def check() -> None:
        if received:
            raise SignalReceived(received[0])

    def on_signal(number: int, frame: FrameType | None) -> None:
        check()
        received.append(number)
        print_text("Stopping; interrupt again to stop at once.", on_stderr=True)

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
