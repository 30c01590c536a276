"""Event loop on a virtual clock, and the processes that run on it."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from itertools import count
from random import Random
from typing import Any

from penstock.client.connect.client_session import STREAM_NAMES
from tests.store.memory_disk import ProcessDied

PROCESS: ContextVar[Process] = ContextVar("PROCESS")
"""The process to which the running callback belongs."""

_MOST_TURNS = 1_000_000


class Stalled(Exception):
    """Nothing is scheduled, so the clock cannot go on, or the loop turns for ever."""


class Process:
    """A simulated process. Its callbacks and tasks no longer run after its death.

    Attributes:
        name: for the schedule.
        host: the address of its machine.
        random: random numbers of the process.
        is_alive: whether its callbacks run.
        ended: set at the end of the process.
        work_ends: executor -> end of its last work.
        paused_until: the time until which no callback runs.
        context: the context of its callbacks.
    """

    def __init__(self, name: str, host: str, random: Random) -> None:
        self.name = name
        self.host = host
        self.random = random
        self.is_alive = True
        self.ended = asyncio.Event()
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)
        self.context.run(STREAM_NAMES.set, random)
        self.work_ends: dict[object, float] = {}
        self.paused_until = 0.0

    def kill(self) -> None:
        """End the process."""
        self.is_alive = False
        self.ended.set()


class _ProcessHandle(asyncio.TimerHandle):
    """A callback that does nothing after the death of its process. It may have a time."""

    __slots__ = ()

    @property
    def process(self) -> Process | None:
        """The process of the callback."""
        found: Process | None = self._context.get(PROCESS)  # type: ignore[attr-defined]
        return found

    def _run(self) -> None:
        if self.process is None or self.process.is_alive:
            super()._run()


class VirtualLoop(asyncio.BaseEventLoop):
    """Event loop whose clock jumps to the next timer as soon as no callback is ready.

    Work for threads runs on the loop, after a pause that the process chooses. Works of one executor run in order.

    Attributes:
        failures: contexts of errors that no code has handled.
        connect: opens a connection of the simulated network.
    """

    connect: Callable[..., Coroutine[Any, Any, Any]]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._turns = 0
        self._owners: dict[asyncio.Task[Any], Process] = {}  # also keeps the tasks of dead processes
        self._callbacks: deque[_ProcessHandle] = deque()
        self._timers: list[tuple[float, int, _ProcessHandle]] = []
        self._count = count()
        self.failures: list[dict[str, Any]] = []
        self.set_exception_handler(self._keep_failure)

    def _keep_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), ProcessDied):
            self.failures.append(context)

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        """Run the callbacks that are ready. If none is, advance the clock to the next timer."""
        self._turns += 1
        callbacks, timers = self._callbacks, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if self._turns > _MOST_TURNS or not (timers or callbacks):
            raise Stalled(f"at {self._now:.6f} s, after {self._turns} turns")
        if not callbacks:
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            callbacks.append(heapq.heappop(timers)[2])
        for _ in range(len(callbacks)):
            callback = callbacks.popleft()
            process = callback.process
            if process is not None and process.paused_until > self._now and process.is_alive:
                heapq.heappush(timers, (process.paused_until, next(self._count), callback))
            elif not callback.cancelled():
                callback._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    # Callbacks belong to processes

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = _ProcessHandle(self._now, callback, args, self, context)
        self._callbacks.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _ProcessHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._count), handle))
        return handle

    def spawn(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in a process."""
        return self.create_task(work, context=process.context.copy())

    def bury(self) -> None:
        """End all tasks, those of dead processes too, so that none is left to the garbage collector."""
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            process = self._owners.get(task)
            if process is not None:
                process.is_alive = True
            task.cancel()
        self._turns = 0
        if tasks:
            self.run_until_complete(asyncio.wait(tasks, timeout=60))

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> asyncio.Task[Any]:
        task = super().create_task(coro, name=name, context=context)
        process = (context or copy_context()).get(PROCESS)
        if process is not None:
            self._owners[task] = process
            task.add_done_callback(self._owners.pop, context=Context())
        return task

    # Threads and connections

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        process = PROCESS.get()
        future: asyncio.Future[Any] = self.create_future()
        due = max(process.work_ends.get(executor, 0.0), self._now) + process.random.expovariate(500) + 1e-6
        process.work_ends[executor] = due
        self.call_at(due, self._run_work, process, future, func, args)
        return future

    def _run_work(self, process: Process, future: asyncio.Future[Any], func: Callable[..., Any], args: Any) -> None:
        if future.cancelled():
            return
        try:
            result = func(*args)
        except ProcessDied:
            pass
        except Exception as error:  # noqa: BLE001 as an executor does
            future.set_exception(error)
        else:
            future.set_result(result)

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # type: ignore[override]
        assert not options.get("ssl"), "simulated connections have no TLS"
        return await self.connect(factory, host, port)
