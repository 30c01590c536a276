"""The vbuckets that a TAP consumer gets: which of them there are, and where each of them begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.tap.tap_backlog import TapBacklog
from penstock.node.tap.tap_request import TapRequest
from penstock.node.tap.tap_stream import TapStream, opaque_message
from penstock.node.tap_state.tap_clients import Phase, TapClient, TapPosition
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect, TapOpaque
from penstock.wire.columns.frame_form import FrameForm
from penstock.wire.messages.tap import TapFlush

__all__ = ["TapSelection"]


class TapSelection:
    """Opens, restarts and drops the streams of one TAP connection.

    Attributes:
        request: what the consumer asked for.
        form: how changes look.
        client: where the consumer was when it left.
        streams: by vbucket, the streams that are open.
    """

    def __init__(
        self,
        bucket: ServedBucket,
        request: TapRequest,
        form: FrameForm,
        client: TapClient,
        backlog: TapBacklog,
        *,
        resume: Callable[[], None],
        keep_totals: Callable[[TapStream], None],
    ) -> None:
        """Select nothing.

        Args:
            backlog: where the streams wait for their turns.
            resume: asks for a turn.
            keep_totals: adds what a stream has sent that is dropped to the totals of the connection.
        """
        self.bucket = bucket
        self.request = request
        self.form = form
        self.client = client
        self.streams: dict[int, TapStream] = {}
        self._backlog = backlog
        self._resume = resume
        self._keep_totals = keep_totals
        self._flushed: set[int] = set()

    def begin(self) -> None:
        """Open all streams that the consumer asked for."""
        for vbucket in self.bucket.store.vbuckets:
            if self._wants(vbucket):
                self._open(vbucket)
        self._backlog.refusals.restore(self.streams)

    def change_filter(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Send these vbuckets from now on, all where there is none.

        Args:
            pairs: (vbucket, the last checkpoint that the consumer has closed). Vbuckets that are sent already go on
                where they are.
        """
        self.request.change_filter(pairs)
        self._backlog.notices.add(opaque_message(TapOpaque.COMPLETE_VB_FILTER_CHANGE))
        for vbucket in self.bucket.store.vbuckets:
            stream, wanted = self.streams.get(vbucket.id), self._wants(vbucket)
            if stream is None and wanted:
                self._open(vbucket)
            elif stream is not None and not wanted:
                self._drop(stream)

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        stream = self.streams.get(vbucket.id)
        if event is VbucketEvent.FLUSHED:
            self._flushed.add(vbucket.id)  # also one that is not sent: whether all were flushed decides what is sent
        if stream is None:
            if not self.request.is_dump and self._wants(vbucket):
                self._open(vbucket)
        elif event is VbucketEvent.DELETED:
            self._drop(stream)
        elif event is VbucketEvent.FLUSHED:
            self._remove(stream)

    def apply_flushes(self) -> None:
        """Announce once that all was flushed. If only some vbuckets were, restart those."""
        if not self._flushed:
            return
        flushed, self._flushed = self._flushed, set()
        streams = [stream for number, stream in self.streams.items() if number in flushed]
        if not streams:
            return
        alive = {vbucket.id for vbucket in self.bucket.store.vbuckets if vbucket.history.state is not None}
        if not alive <= flushed:
            for stream in streams:
                self.restart(stream)
            return
        for stream in streams:
            phase = Phase.BACKFILL if stream.place.phase is Phase.BACKFILL else Phase.LIVE
            stream.restart(TapPosition(phase, stream.vbucket.history.vbuuid))
        self._backlog.notices.add(TapFlush(), *streams)
        for stream in streams:
            self._backlog.add(stream)

    def restart_all(self) -> None:
        """Send everything again, from the beginning."""
        for stream in tuple(self.streams.values()):
            self.restart(stream)

    def restart(self, stream: TapStream) -> None:
        """Send a vbucket from the beginning. What is acknowledged of the old stream counts no more."""
        self._remove(stream)
        new = self.streams[stream.vbucket.id] = TapStream(
            self, stream.vbucket, TapPosition(Phase.NEW, stream.vbucket.history.vbuuid)
        )
        new.items_sent, new.bytes_sent = stream.items_sent, stream.bytes_sent
        self._announce(new)

    def wake(self, stream: TapStream) -> None:
        """Take a stream that waited for changes into the next turn."""
        self._backlog.live.append(stream)
        self._resume()

    def close(self) -> None:
        """Keep what the consumer has acknowledged."""
        self.client.places = {number: stream.acked for number, stream in self.streams.items()}
        self.streams.clear()

    def _wants(self, vbucket: Vbucket) -> bool:
        return self.request.wants(vbucket, bridged=self.bucket.bridge is not None)

    def _open(self, vbucket: Vbucket) -> None:
        """Begin with a vbucket, or go on with it."""
        place = self.client.places.get(vbucket.id)
        if place is None or not place.is_on_history(vbucket):
            place = self.request.first_place(vbucket, self.bucket.tap.checkpoints(vbucket), time.time())
        stream = self.streams[vbucket.id] = TapStream(self, vbucket, place)
        self.bucket.sent[Dialect.TAP].streams_opened += 1
        self._announce(stream)

    def _announce(self, stream: TapStream) -> None:
        """Let a stream wait for its turn. A consumer that begins with its vbucket is told so first."""
        if stream.place.phase is Phase.NEW:
            stream.restart(TapPosition(Phase.BACKFILL, stream.vbucket.history.vbuuid))
            self._backlog.notices.add(opaque_message(TapOpaque.INITIAL_VBUCKET_STREAM, stream.vbucket.id), stream)
        self._backlog.add(stream)

    def _drop(self, stream: TapStream) -> None:
        self._remove(stream)
        self._keep_totals(stream)
        del self.streams[stream.vbucket.id]
        self.client.places.pop(stream.vbucket.id, None)

    def _remove(self, stream: TapStream) -> None:
        """Take a stream out of wherever it waits."""
        self.bucket.forget(stream)
        self._backlog.remove(stream)
