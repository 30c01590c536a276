"""Handlers at work: takes deliveries, calls the handler, reports finished changes. The schedule makes the decisions."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial

from penstock.client.consumers.handled_stream import HandledStream
from penstock.client.consumers.handler_failures import DeadLetter, DeadLetterSink, HandlerRetry
from penstock.client.consumers.handler_schedule import HandlerJob, HandlerSchedule
from penstock.client.consumers.hidden_changes import HiddenChanges
from penstock.client.feeds.deliveries import Delivery
from penstock.client.tracing.tracer import WorkSpan
from penstock.errors import Error, UsageError
from penstock.wire.columns.schema import Change

__all__ = ["Handler", "HandlerRun"]

logger = logging.getLogger("penstock.client")

Handler = Callable[[Change], Awaitable[None] | None]
"""Processes one change: an async function, or a plain function, which runs in a thread."""


@dataclass(slots=True)
class _OpenDelivery:
    """An unfinished delivery.

    Attributes:
        delivery: the delivery.
        left: the number of changes at its end that are unfinished.
        span: its span.
    """

    delivery: Delivery
    left: int
    span: WorkSpan


class HandlerRun:
    """Calls a handler for all changes of a source until the source ends.

    Args:
        source: the deliveries.
        handler: processes one change.
        concurrency: the number of handlers at a time.
        retry: the attempts for a change.
        dead_letters: receives the changes of failed handlers; None: the run ends with the handler's error.
        hidden: the changes that the handler does not get.

    Raises:
        UsageError: the concurrency is below 1.
    """

    def __init__(
        self,
        source: HandledStream,
        handler: Handler,
        *,
        concurrency: int,
        retry: HandlerRetry,
        dead_letters: DeadLetterSink | None,
        hidden: HiddenChanges,
    ) -> None:
        if concurrency < 1:
            raise UsageError(f"concurrency is {concurrency!r}, expected 1 or more")
        self._source = source
        self._handler = handler
        self._retry = retry
        self._dead_letters = dead_letters
        self._hidden = hidden
        self._schedule = HandlerSchedule(concurrency)
        self._jobs: dict[asyncio.Task[None], HandlerJob] = {}
        self._open: deque[_OpenDelivery] = deque()
        """Unfinished deliveries; the oldest is first."""
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object with an async __call__ is a handler too
        )
        self._threads = ThreadPoolExecutor(concurrency, "penstock-handler")

    async def run(self) -> None:
        """Process all changes. An error ends the handlers that still run; their changes are unfinished."""
        coming: asyncio.Task[None] | None = None
        has_ended = False

        async def take() -> None:
            nonlocal has_ended
            delivery = await self._source.take_ahead()
            has_ended = delivery is None
            if delivery is not None:
                self._add(delivery)

        try:
            while not has_ended or self._schedule.unfinished:
                if coming is None and not has_ended and self._schedule.has_room:
                    coming = asyncio.create_task(take())
                for job in self._schedule.start_due():
                    task = asyncio.create_task(self._process(job), context=job.span.make_context())
                    self._jobs[task] = job
                await self._source.wait_or_commit({*self._jobs, *((coming,) if coming else ())})
                if coming is not None and coming.done():
                    await coming
                    coming = None
                self._finish_ended()
        except Exception as error:
            self._end_spans(error)
            raise
        finally:
            self._end_spans()
            left = [*self._jobs, *((coming,) if coming else ())]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _add(self, delivery: Delivery) -> None:
        changes = delivery.changes
        opened = _OpenDelivery(delivery, len(changes), self._source.start_span(delivery))
        self._open.append(opened)
        if len(self._open) == 1:
            self._source.begin_delivery(delivery)
        self._schedule.add(changes, opened.span)
        self._record_progress()

    def _finish_ended(self) -> None:
        """Finish the jobs whose tasks have ended. Raises the first error, after finishing all successful jobs."""
        failure: BaseException | None = None
        for task in [task for task in self._jobs if task.done()]:
            job = self._jobs.pop(task)
            error = task.exception()
            failure = failure or error
            if error is None:
                self._schedule.finish(job)
        self._record_progress()
        if failure is not None:
            raise failure

    def _record_progress(self) -> None:
        """Report the changes up to the oldest unfinished one."""
        finished = self._schedule.take_finished()
        while self._open:
            oldest = self._open[0]
            count = min(finished, oldest.left)
            finished -= count
            self._source.count_finished(count)
            oldest.left -= count
            if oldest.left:
                return
            self._open.popleft()
            self._source.finish_delivery(oldest.delivery)
            oldest.span.end()
            if self._open:
                self._source.begin_delivery(self._open[0].delivery)

    def _end_spans(self, error: Exception | None = None) -> None:
        """End the spans of unfinished deliveries. OpenTelemetry ignores the second end of a span."""
        for each in self._open:
            each.span.end(error)

    async def _process(self, job: HandlerJob) -> None:
        change = job.change
        if self._hidden.includes(change):
            return
        failures = 0
        while True:
            try:
                return await self._call(change)
            except Exception as error:  # noqa: BLE001 - the handler is the code of the program
                failures += 1
                delay = self._retry.find_delay(failures)
                if delay is None:
                    return await self._give_up(DeadLetter(change, error, failures))
                logger.warning(
                    "the handler failed for vbucket %d, seqno %s, attempt %d of %d: %s; the next is in %g s",
                    *(change.vbucket, change.seqno, failures, self._retry.attempts, type(error).__name__, delay),
                )
                attempt = {"penstock.vbucket": change.vbucket, "penstock.attempt": failures}
                job.span.add_event("retry", attempt | {"error.type": type(error).__name__})
                await asyncio.sleep(delay)

    async def _call(self, change: Change) -> None:
        try:
            if self._is_async:
                returned = self._handler(change)
            else:
                call = partial(copy_context().run, self._handler, change)
                returned = await asyncio.get_running_loop().run_in_executor(self._threads, call)
            if inspect.isawaitable(returned):  # also of a lambda around an async function
                await returned
        except asyncio.CancelledError as cancelled:
            if _is_cancelled():
                raise
            raise Error("the handler has awaited something that was cancelled") from cancelled

    async def _give_up(self, letter: DeadLetter) -> None:
        if self._dead_letters is None:
            raise letter.error
        returned = self._dead_letters(letter)
        if inspect.isawaitable(returned):
            await returned


def _is_cancelled() -> bool:
    """Return whether this task is cancelled, because the run ends."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
