"""Items that an event loop makes in its thread, and a program uses in its own thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from queue import SimpleQueue
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class LentItem(NamedTuple, Generic[T]):
    """An item for the program, and the call that follows its use.

    Attributes:
        item: the item.
        give_back: called on the loop when the program requests the item after this one.
    """

    item: T
    give_back: Callable[[], None]


class ReadAhead(Generic[T]):
    """Reads an asynchronous generator while the program uses earlier items, with a bound.

    Without it, the threads take turns: the loop waits while the program works, and each item costs two switches of
    threads that both wait. All methods except `take_item` are for the thread of the loop.

    Args:
        items: the generator. Its items are never None.
        bound: the number of items that the program has, or that wait for it.
    """

    def __init__(self, items: AsyncGenerator[LentItem[T], None], bound: int) -> None:
        self._items = items
        self._room = asyncio.Semaphore(bound)
        self._ready: SimpleQueue[T | BaseException | None] = SimpleQueue()
        self._lent: deque[LentItem[T]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def fill(self) -> None:
        """Read until the generator ends or fails. Its end, or its error, stands behind its last item."""
        self._task = asyncio.current_task()
        end: BaseException | None = None
        try:
            await self._room.acquire()
            async for lent in self._items:
                self._lent.append(lent)
                self._ready.put(lent.item)
                await self._room.acquire()
        except BaseException as error:
            end = error
            if not isinstance(error, Exception):  # a cancelled task must end as cancelled
                raise
        finally:
            self._ready.put(end)
            await self._items.aclose()

    async def stop(self) -> None:
        """End `fill`, and close the generator."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    def give_back(self) -> None:
        """Give the oldest item back, because the program has used it."""
        self._lent.popleft().give_back()
        self._room.release()

    def take_item(self) -> T | None:
        """Return the next item when it is there; None after the last one. Called by the program's thread.

        Raises:
            BaseException: the error of the generator, after the items before it.
        """
        found = self._ready.get()
        if isinstance(found, BaseException):
            raise found
        return found
