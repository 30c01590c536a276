"""Handlers at work: takes deliveries, calls the handler, reports finished changes. The schedule makes the decisions."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from penstock.client.consumers.committer import Committer
from penstock.client.consumers.handler_failures import DeadLetter, DeadLetterSink, HandlerRetry
from penstock.client.consumers.handler_schedule import HandlerJob, HandlerSchedule
from penstock.client.consumers.intake import Intake
from penstock.client.consumers.progress import TakenDelivery
from penstock.client.tracing.tracer import WorkSpan
from penstock.errors import Error, UsageError
from penstock.wire.columns.schema import Change

logger = logging.getLogger("penstock.client")

Handler = Callable[[Change], Awaitable[None] | None]
"""Processes one change: an async function, or a plain function, which runs in a thread."""


class HandlerRun:
    """Calls a handler for all changes until the stream ends.

    Args:
        intake: takes the deliveries, also before earlier ones are finished, and keeps those that are not.
        committer: commits the positions before the oldest unfinished change.
        handler: processes one change.
        concurrency: the number of handlers at a time.
        retry: the attempts for a change.
        dead_letters: receives the changes of failed handlers; None: the run ends with the handler's error.

    Raises:
        UsageError: the concurrency is below 1.
    """

    def __init__(
        self,
        intake: Intake,
        committer: Committer,
        handler: Handler,
        *,
        concurrency: int,
        retry: HandlerRetry,
        dead_letters: DeadLetterSink | None,
    ) -> None:
        if concurrency < 1:
            raise UsageError(f"concurrency is {concurrency!r}, expected 1 or more")
        self._intake = intake
        self._committer = committer
        self._handler = handler
        self._retry = retry
        self._dead_letters = dead_letters
        self._schedule = HandlerSchedule(concurrency)
        self._jobs: dict[asyncio.Task[None], HandlerJob] = {}
        self._spans: deque[WorkSpan] = deque()
        """The spans of the unfinished deliveries; the oldest is first."""
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object with an async __call__ is a handler too
        )
        self._threads = ThreadPoolExecutor(concurrency, "penstock-handler")

    async def run(self) -> None:
        """Process all changes. An error ends the handlers that still run; their changes are unfinished."""
        intake, has_ended = self._intake, False
        try:
            for taken in intake.progress.unprocessed:  # by an earlier call, which did not finish them
                self._add(taken)
            self._record_progress()
            while not has_ended or self._schedule.unfinished:
                is_taking = not has_ended and self._schedule.has_room
                self._start_due()
                await self._wait(is_taking=is_taking)
                coming = intake.expect_delivery() if is_taking else None
                if coming is not None and coming.done():
                    has_ended = intake.take() is None
                    if not has_ended:
                        self._add(intake.progress.unprocessed[-1])
                self._finish_ended()
        except Exception as error:
            self._end_spans(error)
            raise
        finally:
            self._end_spans()
            for task in self._jobs:
                task.cancel()
            await asyncio.gather(*self._jobs, return_exceptions=True)
            self._record_ended()
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _wait(self, *, is_taking: bool) -> None:
        """Wait until a handler ends, a delivery arrives or a commit is due, and commit if it is."""
        tasks: set[asyncio.Future[Any]] = {*self._jobs}
        if is_taking:
            tasks.add(self._intake.expect_delivery())
        await self._committer.wait(tasks, self._intake.note_positions)
        await self._committer.commit_if_due()

    def _start_due(self) -> None:
        for job in self._schedule.start_due():
            task = asyncio.create_task(self._process(job), context=job.span.make_context())
            self._jobs[task] = job

    def _add(self, taken: TakenDelivery) -> None:
        """Add the unfinished changes of a delivery."""
        progress, span = self._intake.progress, self._intake.start_span(taken.delivery)
        self._spans.append(span)
        left = progress.left if taken is progress.oldest else len(taken.changes)
        self._schedule.add(taken.changes[len(taken.changes) - left :], span)

    def _finish_ended(self) -> None:
        """Record the changes whose handlers have ended. Raises the first error, after recording all successes."""
        if failure := self._record_ended():
            raise failure

    def _record_ended(self) -> BaseException | None:
        """Record the changes whose handlers have ended, and return the first error."""
        failure: BaseException | None = None
        for task in [task for task in self._jobs if task.done()]:
            job = self._jobs.pop(task)
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            failure = failure or error
            if error is None:
                self._schedule.finish(job)
        self._record_progress()
        return failure

    def _record_progress(self) -> None:
        """Record the changes up to the oldest unfinished one."""
        intake, finished = self._intake, self._schedule.take_finished()
        while intake.progress.oldest is not None:
            count = min(finished, intake.progress.left)
            finished -= count
            intake.progress.count_finished(count)
            if intake.progress.has_rest:
                return
            intake.finish_oldest()
            self._spans.popleft().end()

    def _end_spans(self, error: Exception | None = None) -> None:
        """End the spans of unfinished deliveries. OpenTelemetry ignores the second end of a span."""
        for span in self._spans:
            span.end(error)

    async def _process(self, job: HandlerJob) -> None:
        change = job.change
        if self._intake.hidden.includes(change):
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
