"""The vbuckets that a TAP consumer gets, and the position at which each of them starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.tap.tap_backlog import TapBacklog
from penstock.node.tap.tap_request import TapRequest
from penstock.node.tap.tap_stream import TapStream, make_opaque_message
from penstock.node.tap_state.tap_clients import TapClient, TapPhase, TapPosition
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect, TapOpaque
from penstock.wire.columns.frame_form import FrameForm
from penstock.wire.messages.tap import TapFlush


class TapSelection:
    """Opens, restarts and drops the streams of one TAP connection.

    Attributes:
        bucket: the streamed bucket.
        request: the options of TAP_CONNECT.
        form: the form of changes.
        client: the state that outlives the connection.
        streams: the open streams by vbucket.
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
        add_totals: Callable[[TapStream], None],
        time: Callable[[], float],
    ) -> None:
        """Create a selection without streams.

        Args:
            bucket: the streamed bucket.
            request: the options of TAP_CONNECT.
            form: the form of changes.
            client: the state that outlives the connection.
            backlog: gets the streams that wait for their turns.
            resume: schedules a turn.
            add_totals: adds the totals of a dropped stream to those of the connection.
            time: returns seconds since the epoch.
        """
        self.bucket = bucket
        self.request = request
        self.form = form
        self.client = client
        self.streams: dict[int, TapStream] = {}
        self._backlog = backlog
        self._resume = resume
        self._add_totals = add_totals
        self._time = time
        self._flushed_vbuckets: set[int] = set()

    def open_streams(self) -> None:
        """Open a stream for each requested vbucket."""
        for vbucket in self.bucket.store.vbuckets:
            if self._includes(vbucket):
                self._open_stream(vbucket)
        self._backlog.refusals.restore(self.streams)

    def change_filter(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Send other vbuckets from now on. Open streams continue at their position.

        Args:
            pairs: (vbucket, last checkpoint that the consumer has closed); empty for all vbuckets.
        """
        self.request.change_filter(pairs)
        self._backlog.notices.add(make_opaque_message(TapOpaque.COMPLETE_VB_FILTER_CHANGE))
        for vbucket in self.bucket.store.vbuckets:
            stream, wanted = self.streams.get(vbucket.id), self._includes(vbucket)
            if stream is None and wanted:
                self._open_stream(vbucket)
            elif stream is not None and not wanted:
                self._drop_stream(stream)

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """Apply an event of a vbucket to its stream."""
        stream = self.streams.get(vbucket.id)
        if event is VbucketEvent.FLUSHED:
            self._flushed_vbuckets.add(
                vbucket.id
            )  # also without a stream: TAP_FLUSH is sent only if all vbuckets were flushed
        if stream is None:
            if not self.request.is_dump and self._includes(vbucket):
                self._open_stream(vbucket)
        elif event is VbucketEvent.DELETED:
            self._drop_stream(stream)
        elif event is VbucketEvent.FLUSHED:
            self._unschedule_stream(stream)

    def apply_flushes(self) -> None:
        """Announce a flush of all vbuckets by one message. After a flush of some vbuckets, restart their streams."""
        if not self._flushed_vbuckets:
            return
        flushed, self._flushed_vbuckets = self._flushed_vbuckets, set()
        streams = [stream for number, stream in self.streams.items() if number in flushed]
        if not streams:
            return
        alive = {vbucket.id for vbucket in self.bucket.store.vbuckets if vbucket.history.state is not None}
        if not alive <= flushed:
            for stream in streams:
                self.restart_stream(stream)
            return
        for stream in streams:
            phase = TapPhase.BACKFILL if stream.position.phase is TapPhase.BACKFILL else TapPhase.LIVE
            stream.restart(TapPosition(phase, stream.vbucket.history.vbuuid))
        self._backlog.notices.add(TapFlush(), *streams)
        for stream in streams:
            self._backlog.add(stream)

    def restart_all(self) -> None:
        """Send everything again, from the start."""
        for stream in tuple(self.streams.values()):
            self.restart_stream(stream)

    def restart_stream(self, stream: TapStream) -> None:
        """Send a vbucket from the start. Answers to messages of the old stream are ignored."""
        self._unschedule_stream(stream)
        new = self.streams[stream.vbucket.id] = TapStream(
            self, stream.vbucket, TapPosition(TapPhase.NEW, stream.vbucket.history.vbuuid)
        )
        new.items_sent, new.bytes_sent = stream.items_sent, stream.bytes_sent
        self._announce_stream(new)

    def wake(self, stream: TapStream) -> None:
        """Add a stream that has waited for changes to the next turn."""
        self._backlog.live.append(stream)
        self._resume()

    def close(self) -> None:
        """Keep the acknowledged positions of the client."""
        self.client.positions = {number: stream.acked_position for number, stream in self.streams.items()}
        self.streams.clear()

    def _includes(self, vbucket: Vbucket) -> bool:
        return self.request.includes(vbucket, bridged=self.bucket.bridge is not None)

    def _open_stream(self, vbucket: Vbucket) -> None:
        """Start or continue to send a vbucket."""
        place = self.client.positions.get(vbucket.id)
        if place is None or not place.is_on_history(vbucket):
            place = self.request.get_first_position(vbucket, self.bucket.tap.get_checkpoints(vbucket), self._time())
        stream = self.streams[vbucket.id] = TapStream(self, vbucket, place)
        self.bucket.sent_counts[Dialect.TAP].streams_opened += 1
        self._announce_stream(stream)

    def _announce_stream(self, stream: TapStream) -> None:
        """Add a stream to the backlog. A new vbucket is announced first."""
        if stream.position.phase is TapPhase.NEW:
            stream.restart(TapPosition(TapPhase.BACKFILL, stream.vbucket.history.vbuuid))
            self._backlog.notices.add(make_opaque_message(TapOpaque.INITIAL_VBUCKET_STREAM, stream.vbucket.id), stream)
        self._backlog.add(stream)

    def _drop_stream(self, stream: TapStream) -> None:
        self._unschedule_stream(stream)
        self._add_totals(stream)
        del self.streams[stream.vbucket.id]
        self.client.positions.pop(stream.vbucket.id, None)

    def _unschedule_stream(self, stream: TapStream) -> None:
        """Remove a stream from all queues."""
        self.bucket.remove_waiting_stream(stream)
        self._backlog.remove(stream)
