"""Checks passwords that are sent in the clear: each takes milliseconds, in which the event loop would serve nobody.

So they are checked on a thread, one at a time. Each address has its turn, then each account of the address, and one
password in it. However many guesses come from one address, other addresses wait for one of them; however many guesses
are made at one account, other accounts wait for one of them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from penstock.errors import TemporaryFailure
from penstock.node.auth import Attempts
from penstock.node.transport.address_shares import network_of

__all__ = ["MOST_OF_ONE", "MOST_WAITING", "Passwords"]

MOST_WAITING: Final = 16_384
MOST_OF_ONE: Final = 4096
"""Passwords that may wait: of all addresses, and of one."""

Check = Callable[[], bool]


class _Waiting(NamedTuple):
    answer: asyncio.Future[bool]
    check: Check
    address: str
    account: str


class Passwords:
    """Passwords that wait to be checked, by address and by account; the first one is the next.

    Args:
        loop: the event loop that asks.
        attempts: refuses guesses whose answers would be queued for too long.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, attempts: Attempts) -> None:
        self._loop = loop
        self._attempts = attempts
        self._waiting: OrderedDict[str, OrderedDict[str, deque[_Waiting]]] = OrderedDict()
        self._counts: dict[str, int] = {}  # by address
        self._count = 0
        self._checking: asyncio.Future[bool] | None = None
        self._thread = ThreadPoolExecutor(1, "penstock-passwords")  # which begins with the first password

    def ask(self, address: str, account: str, check: Check) -> asyncio.Future[bool]:
        """Return a future of the result of a check. A caller that no longer needs it cancels it.

        Args:
            address: of the client.
            account: the name that the client gave, whether or not there is such a user.
            check: tells whether the password is right; called on a thread.

        Raises:
            TemporaryFailure: too many passwords wait, or too many wrong ones of this pair wait for their answer; the
                future may have it as well.
        """
        self._attempts.admit(address, account)
        network = network_of(address)
        of_one = self._counts.get(network, 0)
        if self._count >= MOST_WAITING or of_one >= MOST_OF_ONE:
            raise TemporaryFailure(f"{of_one} passwords from {address} wait to be checked, {self._count} in all")
        answer: asyncio.Future[bool] = self._loop.create_future()
        accounts = self._waiting.setdefault(network, OrderedDict())
        accounts.setdefault(account, deque()).append(_Waiting(answer, check, address, account))
        self._counts[network] = of_one + 1
        self._count += 1
        self._go_on()
        return answer

    def close(self) -> None:
        """Check no more of them."""
        for accounts in self._waiting.values():
            for queue in accounts.values():
                for waiting in queue:
                    waiting.answer.cancel()
        self._waiting.clear()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _go_on(self) -> None:
        while self._checking is None and self._waiting:
            answer, check, address, account = self._take_next()
            if answer.done():
                continue
            try:
                self._attempts.admit(address, account)  # others of this pair may have been wrong since `ask`
            except TemporaryFailure as error:
                answer.set_exception(error)
                continue
            self._checking = self._loop.run_in_executor(self._thread, check)
            self._checking.add_done_callback(partial(self._checked, answer))

    def _take_next(self) -> _Waiting:
        """Return the next password; put its address behind the others, and its account behind others of the address."""
        network, accounts = self._waiting.popitem(last=False)
        account, queue = accounts.popitem(last=False)
        waiting = queue.popleft()
        self._counts[network] -= 1
        self._count -= 1
        if queue:
            accounts[account] = queue
        if accounts:
            self._waiting[network] = accounts
        else:
            del self._counts[network]
        return waiting

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
