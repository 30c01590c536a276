"""Checks passwords that are sent as text. Each check takes milliseconds, which would block the event loop.

So a thread checks them, one at a time. Addresses take turns, and so do the accounts of an address. However many guesses
come from one address, another address waits for one of them only; the same holds for accounts.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from penstock.errors import TemporaryFailure
from penstock.node.auth import LoginAttempts
from penstock.node.transport.address_shares import get_network

MAX_WAITING: Final = 16_384
"""Passwords that may wait to be checked, of all addresses together."""
MAX_WAITING_OF_ADDRESS: Final = 4096
"""Passwords of one address that may wait to be checked."""

PasswordCheck = Callable[[], bool]


class _WaitingPassword(NamedTuple):
    answer: asyncio.Future[bool]
    check: PasswordCheck
    address: str
    account: str


class PasswordChecker:
    """A queue of passwords to check, by address and by account.

    Args:
        loop: the event loop of the callers.
        attempts: refuses guesses whose answers would be queued for too long.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, attempts: LoginAttempts) -> None:
        self._loop = loop
        self._attempts = attempts
        self._waiting: OrderedDict[str, OrderedDict[str, deque[_WaitingPassword]]] = OrderedDict()
        self._counts: dict[str, int] = {}  # by address
        self._count = 0
        self._checking: asyncio.Future[bool] | None = None
        self._thread = ThreadPoolExecutor(1, "penstock-passwords")  # starts its thread with the first password

    def check(self, address: str, account: str, check: PasswordCheck) -> asyncio.Future[bool]:
        """Return a future of the result of a check. A caller that no longer needs the result cancels the future.

        Args:
            address: the client's IP address.
            account: the name that the client sent; the user need not exist.
            check: returns whether the password is right; called on a thread.

        Raises:
            TemporaryFailure: too many passwords wait, or too many answers of this address and account are queued. The
                future may end with this error as well.
        """
        self._attempts.check_queue(address, account)
        network = get_network(address)
        of_one = self._counts.get(network, 0)
        if self._count >= MAX_WAITING or of_one >= MAX_WAITING_OF_ADDRESS:
            raise TemporaryFailure(f"{of_one} passwords from {address} wait to be checked, {self._count} in all")
        answer: asyncio.Future[bool] = self._loop.create_future()
        accounts = self._waiting.setdefault(network, OrderedDict())
        accounts.setdefault(account, deque()).append(_WaitingPassword(answer, check, address, account))
        self._counts[network] = of_one + 1
        self._count += 1
        self._check_next()
        return answer

    def close(self) -> None:
        """Cancel all waiting checks."""
        for accounts in self._waiting.values():
            for queue in accounts.values():
                for waiting in queue:
                    waiting.answer.cancel()
        self._waiting.clear()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _check_next(self) -> None:
        while self._checking is None and self._waiting:
            answer, check, address, account = self._take_next()
            if answer.done():
                continue
            try:
                self._attempts.check_queue(address, account)  # other guesses of this pair may have failed since `check`
            except TemporaryFailure as error:
                answer.set_exception(error)
                continue
            self._checking = self._loop.run_in_executor(self._thread, check)
            self._checking.add_done_callback(partial(self._finish_check, answer))

    def _take_next(self) -> _WaitingPassword:
        """Remove and return the next password. Its address, and its account in the address, go to the end.

        Returns:
            The password to check next.
        """
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

    def _finish_check(self, answer: asyncio.Future[bool], done: asyncio.Future[bool]) -> None:
        self._checking = None
        if done.cancelled():
            answer.cancel()
        elif not answer.done():
            if (error := done.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(done.result())
        self._check_next()
