"""Calls for programs without an event loop.

The loop runs in its own thread, so that the client answers the node's liveness checks while the caller is busy.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import pyarrow as pa

from penstock.argument_types import check_arguments
from penstock.client.bucket import Bucket
from penstock.client.connect.address import DEFAULT_URL, Address, parse_address
from penstock.client.login.credentials import TokenSource, resolve_login
from penstock.client.read_ahead import LentItem, ReadAhead
from penstock.client.streams.stream_choice import ChangeOptions, Start, Stop

T = TypeVar("T")
Changes = Generator[pa.RecordBatch, None, None]


_STOP_SECONDS = 10.0

_ITEMS_AHEAD = 1
"""Items that wait while the program uses one. More keep more memory, and the loop receives meanwhile anyway."""


class LoopThread:
    """An event loop in a daemon thread. A context manager: its end cancels all tasks and stops the thread.

    The end of the program does so too. Python would otherwise stop the thread where it is, and then close generators
    that wait for it.
    """

    def __init__(self, name: str = "penstock-loop") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        atexit.register(self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        atexit.unregister(self._stop)
        self._stop()

    def _stop(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_SECONDS)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread, and return its result. Ctrl-C cancels the coroutine.

        Args:
            coroutine: the coroutine to run.

        Returns:
            The result of the coroutine. Its error is raised in the calling thread.
        """
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Return the future of a coroutine that runs in the thread. The end of the context cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def iterate(self, items: AsyncGenerator[LentItem[T], None]) -> Generator[T, None, None]:
        """Iterate over an asynchronous generator, and read ahead. Closing this generator closes the asynchronous one.

        Args:
            items: the generator. An item is given back when the caller requests the item after it.

        Yields:
            Its items.
        """
        ahead = ReadAhead(items, _ITEMS_AHEAD + 1)
        self.start(ahead.fill())
        try:
            while (item := ahead.take_item()) is not None:
                yield item
                self._loop.call_soon_threadsafe(ahead.give_back)
        finally:
            if not self._loop.is_closed():  # else the program ends
                self.run(ahead.stop())

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            pending = asyncio.all_tasks(self._loop)
            for task in pending:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


@check_arguments
def read_changes(
    url: str = DEFAULT_URL,
    *,
    start: Start = "beginning",
    stop: Stop = None,
    vbuckets: Sequence[int] | None = None,
    username: str | None = None,
    password: str | None = None,
    token: TokenSource | None = None,
    **options: Unpack[ChangeOptions],
) -> Changes:
    """Return a generator of a bucket's changes.

    The generator connects before its first batch. It disconnects after its last batch, or when it is closed. Errors are
    those of Bucket.stream.

    Args:
        url: the connection string.
        start: as in Bucket.stream.
        stop: as in Bucket.stream.
        vbuckets: as in Bucket.stream.
        username: the user name; None: no login.
        password: the password of the user.
        token: as in `connect`.
        options: as in Bucket.stream.

    Returns:
        A generator of pyarrow.RecordBatch with CHANGE_SCHEMA.
    """
    return read_changes_at(
        parse_address(url, resolve_login(username, password, token)), start, stop, vbuckets, **options
    )


def read_changes_at(
    address: Address,
    start: Start = "beginning",
    stop: Stop = None,
    vbuckets: Sequence[int] | None = None,
    **options: Unpack[ChangeOptions],
) -> Changes:
    """Yield a bucket's changes as `read_changes` does, for a parsed address.

    Args:
        address: where the bucket is.
        start: as in Bucket.stream.
        stop: as in Bucket.stream.
        vbuckets: as in Bucket.stream.
        options: as in Bucket.stream.

    Yields:
        pyarrow.RecordBatch with CHANGE_SCHEMA.
    """

    async def lend_batches() -> AsyncGenerator[LentItem[pa.RecordBatch], None]:
        async with Bucket(address) as bucket, await bucket.stream(start, stop, vbuckets, **options) as stream:
            while (delivery := await stream.next_delivery(is_ahead=True)) is not None:
                yield LentItem(delivery.batch, partial(stream.acknowledge, delivery))

    with LoopThread() as loop, closing(loop.iterate(lend_batches())) as batches:
        yield from batches
