"""The same calls for programs without an event loop: the loop runs in a thread of its own, so that the node's liveness
checks are answered while the caller is busy with a batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import pyarrow as pa

from penstock.client.bucket import Bucket
from penstock.client.connect.address import DEFAULT_URL, Address, parse_address
from penstock.client.connect.credentials import credentials_from
from penstock.client.streams.stream_choice import ChangeOptions, Start, Stop

T = TypeVar("T")
Changes = Generator[pa.RecordBatch, None, None]


_STOP_SECONDS = 10.0


class LoopThread:
    """An event loop in a daemon thread. `run` waits for a coroutine there; leaving the block stops and joins it."""

    def __init__(self, name: str = "penstock-loop") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what the coroutine returns; its error is raised here. Ctrl-C cancels it."""
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Let a coroutine run there; leaving the block cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Give the items of an asynchronous generator, none of which is None; closing this one closes that one."""
        current: asyncio.Task[Any] | None = None

        async def following() -> T | None:
            nonlocal current
            current = asyncio.current_task()
            return await anext(items, None)

        async def close() -> None:
            if current is not None and not current.done():  # Ctrl-C: it may not even have been cancelled
                if not current.cancelling():
                    current.cancel()
                await asyncio.wait([current])
            await items.aclose()

        try:
            while (item := self.run(following())) is not None:
                yield item
        finally:
            self.run(close())

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


def read_changes(
    url: str = DEFAULT_URL,
    *,
    start: Start = "beginning",
    stop: Stop = None,
    vbuckets: Sequence[int] | None = None,
    username: str | None = None,
    password: str | None = None,
    **options: Unpack[ChangeOptions],
) -> Changes:
    """Give a bucket's changes as pyarrow.RecordBatch of CHANGE_SCHEMA. Arguments and errors as of `Bucket.stream`.

    username, password: of the login. The connections are made with the first batch. They are closed after the last one,
    or when the generator is.
    """
    return changes_at(parse_address(url, credentials_from(username, password)), start, stop, vbuckets, **options)


def changes_at(
    address: Address,
    start: Start = "beginning",
    stop: Stop = None,
    vbuckets: Sequence[int] | None = None,
    **options: Unpack[ChangeOptions],
) -> Changes:
    """Do what read_changes does, at an address."""

    async def batches() -> AsyncGenerator[pa.RecordBatch, None]:
        async with Bucket(address) as bucket, aclosing(bucket.batches(start, stop, vbuckets, **options)) as found:
            async for batch in found:
                yield batch

    with LoopThread() as loop:
        yield from loop.iterate(batches())
