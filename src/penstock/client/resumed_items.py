"""An asynchronous iterator that goes on after a call that was cancelled, unlike an asynchronous generator."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from types import AsyncGeneratorType, TracebackType
from typing import Any, TypeVar, cast

T = TypeVar("T")


class ResumedItems(AsyncGenerator[T, None]):
    """The items of a generator, and of a new one each time an error or `asyncio.timeout` has ended it.

    Args:
        generate: returns a generator that goes on after the items that were handed out.
    """

    def __init__(self, generate: Callable[[], AsyncGenerator[T, None]]) -> None:
        self._generate = generate
        self._items = self._start()
        self._is_closed = False

    def __anext__(self) -> Coroutine[Any, Any, T]:
        """Return the awaitable of the generator itself, which costs one call less."""
        return self._continue().__anext__()

    async def asend(self, value: None) -> T:
        """Return the next item."""
        return await self._continue().asend(value)

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> T:
        """Raise an error in the generator."""
        error = typ if isinstance(typ, BaseException) else val if isinstance(val, BaseException) else typ()
        return await self._continue().athrow(error)

    async def aclose(self) -> None:
        """End the iteration. A task that waits for an item goes on waiting, until its source ends."""
        self._is_closed = True
        if not self._items.ag_running:
            await self._items.aclose()

    def _continue(self) -> AsyncGeneratorType[T, None]:
        if self._items.ag_frame is None and not self._is_closed:
            self._items = self._start()
        return self._items

    def _start(self) -> AsyncGeneratorType[T, None]:
        return cast("AsyncGeneratorType[T, None]", self._generate())
