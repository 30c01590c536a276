"""The order in which handlers get changes, and the changes that are finished. Decisions without I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from penstock.client.tracing.tracer import NO_SPAN, WorkSpan
from penstock.wire.columns.schema import Change, Event

_DOCUMENT_EVENTS = frozenset({Event.MUTATION, Event.DELETION, Event.EXPIRATION})


@dataclass(slots=True, eq=False)
class HandlerJob:
    """One change for the handler.

    Attributes:
        change: the change.
        is_finished: whether the handler has finished with it.
        blockers: the number of unfinished jobs before which this job must not start.
        followers: the jobs that wait for this one.
        span: the span of its delivery.
    """

    change: Change
    span: WorkSpan = NO_SPAN
    is_finished: bool = False
    blockers: int = 0
    followers: list[HandlerJob] = field(default_factory=list)


class HandlerSchedule:
    """Starts the changes of one document in order, and all others beside each other up to a limit.

    A rollback, a flush or a collection event concerns many documents. So it starts after all earlier changes of its
    vbucket are finished, and the later ones wait for it.

    Args:
        concurrency: the number of changes that handlers may have at a time.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._running = 0
        self._unfinished = 0
        self._ready: deque[HandlerJob] = deque()
        self._window: deque[HandlerJob] = deque()
        """All jobs from the oldest unfinished one on, in the order of their arrival."""
        self._last: dict[int, dict[Hashable, HandlerJob]] = {}
        """Vbucket -> document -> its newest unfinished job. The document None stands for the whole vbucket."""

    @property
    def unfinished(self) -> int:
        """The number of changes that wait, or that handlers have."""
        return self._unfinished

    @property
    def has_room(self) -> bool:
        """Whether handlers could soon need more changes than there are."""
        return self._unfinished < 2 * self._concurrency

    def add(self, changes: Iterable[Change], span: WorkSpan = NO_SPAN) -> None:
        """Add changes of one delivery, which arrived after all others."""
        for change in changes:
            job = HandlerJob(change, span)
            document = _identify_document(change)
            last = self._last.setdefault(change.vbucket, {})
            if document is None:
                blockers = [*last.values()]
                last.clear()
            else:
                earlier = last.get(document) or last.get(None)
                blockers = [] if earlier is None else [earlier]
            last[document] = job
            job.blockers = len(blockers)
            for blocker in blockers:
                blocker.followers.append(job)
            if not blockers:
                self._ready.append(job)
            self._window.append(job)
            self._unfinished += 1

    def start_due(self) -> list[HandlerJob]:
        """Return the jobs that handlers get now."""
        count = min(self._concurrency - self._running, len(self._ready))
        self._running += count
        return [self._ready.popleft() for _ in range(count)]

    def finish(self, job: HandlerJob) -> None:
        """Record that a handler has finished with a job."""
        job.is_finished = True
        self._running -= 1
        self._unfinished -= 1
        for follower in job.followers:
            follower.blockers -= 1
            if not follower.blockers:
                self._ready.append(follower)
        last, document = self._last[job.change.vbucket], _identify_document(job.change)
        if last.get(document) is job:
            del last[document]

    def take_finished(self) -> int:
        """Return the number of changes up to the oldest unfinished one that earlier calls did not return."""
        count = 0
        while self._window and self._window[0].is_finished:
            self._window.popleft()
            count += 1
        return count


def _identify_document(change: Change) -> Hashable:
    return (change.collection_id, change.key) if change.event in _DOCUMENT_EVENTS else None
