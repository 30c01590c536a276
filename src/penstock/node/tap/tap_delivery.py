"""What a TAP connection has sent, and what its consumer answers: messages are numbered, encoded and acknowledged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.session.tap_settings import TapSettings
from penstock.node.tap.tap_backlog import TapBacklog, TapNotice
from penstock.node.tap.tap_changes import Column, encode_changes, mutations_of, seqnos_of, shown, without_spent
from penstock.node.tap.tap_log import TapLog
from penstock.node.tap.tap_stream import TapStream
from penstock.node.tap_state.tap_clients import TapPosition
from penstock.store.history.frame_chunks import Chunk
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Buffer
from penstock.wire.columns.frame_form import FrameForm

__all__ = ["TapDelivery"]


@dataclass(frozen=True, slots=True)
class _SentChanges:
    """Changes of one vbucket. place: behind the last one. again: sent a second time."""

    stream: TapStream
    place: TapPosition
    seqnos: Column
    again: bool = False


class TapDelivery:
    """Sends notices and changes, and applies the answers of the consumer to the streams.

    Attributes:
        log: what is unacknowledged.
    """

    def __init__(self, bucket: ServedBucket, form: FrameForm, acks: bool, settings: TapSettings) -> None:
        """acks: the consumer acknowledges. settings: how often, and for how many messages at most."""
        interval = settings.ack_interval
        self.log: TapLog[TapNotice | _SentChanges] = TapLog(acks, interval, interval * settings.ack_window_size)
        self._bucket = bucket
        self._form = form
        self._totals = bucket.sent[Dialect.TAP]

    def encode_notice(self, notice: TapNotice) -> bytes:
        sequences, flags = self.log.number(1, notice, asks=True, barrier=True)
        if not self.log.acks:
            notice.acknowledge()
        return replace(notice.message, opaque=int(sequences[0]), tap_flags=int(flags[0])).encode()

    def encode_changes(self, stream: TapStream, chunk: Chunk, *, last: bool, again: bool = False) -> Buffer:
        """Return changes as TAP has them, nothing if TAP can send none of them.

        Args:
            last: nothing follows for now.
            again: the consumer has refused them before.
        """
        chunk = shown(chunk, stream.vbucket)
        hops = self._bucket.tap.hops.get(stream.vbucket.id)
        if hops is not None:
            chunk = without_spent(chunk, hops)
        if not chunk.frames:
            return b""
        changes = _SentChanges(stream, stream.place, seqnos_of(chunk), again)
        sequences, flags = self.log.number(chunk.frames, changes, asks=last)
        if not self.log.acks and not again:
            stream.acked = stream.place
        piece = encode_changes(chunk, self._form, sequences, flags, hops)
        stream.bytes_sent += len(piece)
        self._totals.items += chunk.frames
        self._totals.nbytes += len(piece)
        self._bucket.tap.deletes_sent += chunk.frames - int(mutations_of(chunk).sum())
        return piece

    def acknowledge(self, end: int, backlog: TapBacklog) -> None:
        """Take all messages before number `end` as dealt with by the consumer."""
        for item, first, last in self.log.take(end):
            if isinstance(item, TapNotice):
                item.acknowledge()
            elif item.again:
                for seqno in item.seqnos[first:last]:
                    backlog.refusals.settle(item.stream.vbucket.id, int(seqno))
            else:
                item.stream.acked = item.place._replace(seqno=int(item.seqnos[last - 1]))

    def refuse(self, number: int, backlog: TapBacklog, streams: Mapping[int, TapStream]) -> None:
        """Send a message again. Those before it are acknowledged.

        Args:
            streams: the open streams. Changes of a stream that was closed are not sent again.
        """
        self.acknowledge(number, backlog)
        for item, first, _ in self.log.take(number + 1):
            if isinstance(item, TapNotice):
                backlog.notices.put_back(item)
            elif streams.get(item.stream.vbucket.id) is item.stream:
                backlog.refusals.add(item.stream.vbucket.id, int(item.seqnos[first]))
        self._bucket.tap.backoffs += 1
