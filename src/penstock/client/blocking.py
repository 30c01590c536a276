"""The same calls for programs without an event loop: the loop runs in a thread of its own, so that the node's liveness
checks are answered while the caller is busy with a batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from penstock.client.address import DEFAULT_URL, parse_address
from penstock.client.bucket import Bucket, Start, Stop

T = TypeVar("T")


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
        self._thread.join()

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

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Give the items of an asynchronous generator; closing this one closes that one."""

        async def following() -> T | None:
            return await anext(items, None)

        async def close() -> None:
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
    url: str = DEFAULT_URL, *, start: Start = "beginning", stop: Stop = None, vbuckets: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Give a bucket's changes as pyarrow.RecordBatch of CHANGE_SCHEMA. Arguments and errors as of `Bucket.stream`."""
    bucket = Bucket(parse_address(url))
    with LoopThread() as loop:
        try:
            yield from loop.iterate(bucket.batches(start, stop, vbuckets))
        finally:
            loop.run(bucket.close())
