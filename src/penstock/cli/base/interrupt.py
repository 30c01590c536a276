"""Ctrl-C for work that must not be broken into: Spark's conversation with Java has no good place for an exception."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import TypeVar

__all__ = ["interruptible"]

T = TypeVar("T")


def interruptible(work: Callable[[Callable[[], None]], T]) -> T:
    """Return what `work(check)` returns, run on a thread of its own while this one waits for signals.

    check: to be called now and then where stopping is possible; raises KeyboardInterrupt once SIGINT, SIGTERM or
    SIGHUP came.
    A second signal raises it here at once, and leaves the thread to end with the process. Main thread only.
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
        print("Stopping; a second time stops at once.", file=sys.stderr)

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
