"""The delivery of TAP messages: numbers and encodes them, and applies the consumer's answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.session.tap_settings import TapSettings
from penstock.node.tap.tap_backlog import TapBacklog, TapNotice
from penstock.node.tap.tap_changes import (
    Column,
    drop_expired,
    encode_changes,
    find_mutations,
    read_seqnos,
    to_tap_changes,
)
from penstock.node.tap.tap_log import TapLog
from penstock.node.tap.tap_stream import TapStream
from penstock.node.tap_state.tap_clients import TapPosition
from penstock.store.history.frame_chunks import Chunk
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Buffer
from penstock.wire.columns.frame_form import FrameForm


@dataclass(frozen=True, slots=True)
class _SentChanges:
    """Sent changes of one vbucket.

    Attributes:
        stream: the stream of the vbucket.
        position: the position after the last change.
        seqnos: the seqno of each change.
        is_resend: whether the consumer has refused them before.
    """

    stream: TapStream
    position: TapPosition
    seqnos: Column
    is_resend: bool = False


class TapDelivery:
    """Sends notices and changes, and applies the answers of the consumer to the streams.

    Attributes:
        log: the unacknowledged messages.
    """

    def __init__(self, bucket: ServedBucket, form: FrameForm, acks: bool, settings: TapSettings) -> None:
        """Create the delivery of a connection.

        Args:
            bucket: the streamed bucket.
            form: the form of changes.
            acks: whether the consumer acknowledges messages.
            settings: the interval and the window of acknowledgements.
        """
        interval = settings.ack_interval
        self.log: TapLog[TapNotice | _SentChanges] = TapLog(acks, interval, interval * settings.ack_window_size)
        self._bucket = bucket
        self._form = form
        self._totals = bucket.sent_counts[Dialect.TAP]

    def encode_notice(self, notice: TapNotice) -> bytes:
        """Return a notice with its number."""
        sequences, flags = self.log.number_messages(1, notice, asks_answer=True, blocks_data=True)
        if not self.log.acks:
            notice.acknowledge()
        return replace(notice.message, opaque=int(sequences[0]), tap_flags=int(flags[0])).encode()

    def encode_changes(self, stream: TapStream, chunk: Chunk, *, is_last: bool, is_resend: bool = False) -> Buffer:
        """Return changes as TAP messages, empty if TAP can send none of them.

        Args:
            stream: the stream of the changes.
            chunk: frames of the log.
            is_last: whether nothing follows for now.
            is_resend: whether the consumer has refused the changes before.
        """
        chunk = to_tap_changes(chunk, stream.vbucket)
        ttls = self._bucket.tap.ttls.get(stream.vbucket.id)
        if ttls is not None:
            chunk = drop_expired(chunk, ttls)
        if not chunk.frame_count:
            return b""
        changes = _SentChanges(stream, stream.position, read_seqnos(chunk), is_resend)
        sequences, flags = self.log.number_messages(chunk.frame_count, changes, asks_answer=is_last)
        if not self.log.acks and not is_resend:
            stream.acked_position = stream.position
        piece = encode_changes(chunk, self._form, sequences, flags, ttls)
        stream.bytes_sent += len(piece)
        self._totals.items += chunk.frame_count
        self._totals.nbytes += len(piece)
        self._bucket.tap.deletes_sent += chunk.frame_count - int(find_mutations(chunk).sum())
        return piece

    def acknowledge(self, end: int, backlog: TapBacklog) -> None:
        """Apply an answer: the consumer has processed all messages before number `end`."""
        for item, first, last in self.log.remove_before(end):
            if isinstance(item, TapNotice):
                item.acknowledge()
            elif item.is_resend:
                for seqno in item.seqnos[first:last]:
                    backlog.refusals.remove_change(item.stream.vbucket.id, int(seqno))
            else:
                item.stream.acked_position = item.position._replace(seqno=int(item.seqnos[last - 1]))

    def refuse(self, number: int, backlog: TapBacklog, streams: Mapping[int, TapStream]) -> None:
        """Send a message again. All messages before it are acknowledged.

        Args:
            number: the number of the message.
            backlog: gets the message.
            streams: the open streams. Changes of a closed stream are not sent again.
        """
        self.acknowledge(number, backlog)
        for item, first, _ in self.log.remove_before(number + 1):
            if isinstance(item, TapNotice):
                backlog.notices.put_back(item)
            elif streams.get(item.stream.vbucket.id) is item.stream:
                backlog.refusals.add(item.stream.vbucket.id, int(item.seqnos[first]))
        self._bucket.tap.backoffs += 1
