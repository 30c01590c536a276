"""Passwords that are said as they are: to check one takes milliseconds, in which the event loop would serve nobody.

So they are checked beside it, one at a time. Each address has its turn, and one password in it: however many guesses
come from one, those who log in from another wait for one of them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from penstock.errors import TemporaryFailure

__all__ = ["MOST_OF_ONE", "MOST_WAITING", "Passwords"]

MOST_WAITING: Final = 16_384
MOST_OF_ONE: Final = 4096
"""Passwords that may wait: of all addresses, and of one."""

Check = Callable[[], bool]


class Passwords:
    """What waits to be checked, by the address that it came from; the first is the next."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: OrderedDict[str, deque[tuple[asyncio.Future[bool], Check]]] = OrderedDict()
        self._count = 0
        self._checking: asyncio.Future[bool] | None = None
        self._thread = ThreadPoolExecutor(1, "penstock-passwords")  # which begins with the first password

    def ask(self, address: str, check: Check) -> asyncio.Future[bool]:
        """Return what a check will say; who does not want to know any more cancels it.

        Raises TemporaryFailure if too many wait already.
        """
        of_one = len(self._waiting.get(address, ()))
        if self._count >= MOST_WAITING or of_one >= MOST_OF_ONE:
            raise TemporaryFailure(f"{of_one} passwords from {address} wait to be checked, {self._count} in all")
        answer: asyncio.Future[bool] = self._loop.create_future()
        self._waiting.setdefault(address, deque()).append((answer, check))
        self._count += 1
        self._go_on()
        return answer

    def close(self) -> None:
        """Check no more of them."""
        for queue in self._waiting.values():
            for answer, _ in queue:
                answer.cancel()
        self._waiting.clear()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _go_on(self) -> None:
        while self._checking is None and self._waiting:
            address, queue = self._waiting.popitem(last=False)
            answer, check = queue.popleft()
            self._count -= 1
            if queue:
                self._waiting[address] = queue  # behind the others
            if not answer.cancelled():
                self._checking = self._loop.run_in_executor(self._thread, check)
                self._checking.add_done_callback(partial(self._checked, answer))

    def _checked(self, answer: asyncio.Future[bool], done: asyncio.Future[bool]) -> None:
        self._checking = None
        if done.cancelled():
            answer.cancel()
        elif not answer.done():
            if (error := done.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(done.result())
        self._go_on()
