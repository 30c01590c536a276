"""The node as a DCP consumer against a model of its rules."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.wire.codec.flags import SnapshotFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status as S
from penstock.wire.messages.dcp import Deletion, Mutation, SeqnoAdvanced, SnapshotMarker
from penstock.wire.messages.kv import DelVbucket
from penstock.wire.values.collection_key import DEFAULT_PREFIX
from tests.examples import scaled
from tests.node.producing_peer import make_replica, producing, read_history

KEYS = st.sampled_from([b"a", b"b", b"c"])
NUMBERS = st.integers(0, 12)
MESSAGES = st.one_of(
    st.builds(SnapshotMarker, start_seqno=NUMBERS, end_seqno=NUMBERS, flags=st.sampled_from([1, 5, 9])),
    st.builds(Mutation, key=KEYS, value=st.binary(max_size=3), by_seqno=NUMBERS, rev_seqno=NUMBERS, cas=NUMBERS),
    st.builds(Deletion, key=KEYS, by_seqno=NUMBERS, rev_seqno=NUMBERS, cas=NUMBERS),
    st.builds(SeqnoAdvanced, by_seqno=NUMBERS),
)


class OrderBrokenError(Exception):
    """The consumer ends the connection."""


class CopyModel:
    """The rules of a stream: seqnos increase inside the open snapshot, and only its last seqno completes it.

    Attributes:
        seqno: the newest change.
        whole_seqno: the end of the last complete snapshot.
        documents: the value of each key, None for a deleted document.
    """

    def __init__(self):
        self.seqno = self.whole_seqno = 0
        self.documents = {}
        self._snapshot = None
        self._needs_ack = False

    def receive(self, message):
        """Return the opcode and status of the reply, None without a reply."""
        if isinstance(message, SnapshotMarker):
            return self._open_snapshot(message)
        number, is_change = message.by_seqno, not isinstance(message, SeqnoAdvanced)
        if not number:
            return message.opcode, S.EINVAL
        if is_change and number <= self.seqno:
            return message.opcode, S.ERANGE
        if self._snapshot is None or not self._snapshot[0] <= number <= self._snapshot[1]:
            raise OrderBrokenError
        if is_change:
            self.seqno = number
            self.documents[message.key] = None if isinstance(message, Deletion) else message.value
        if number < self._snapshot[1]:
            return None
        self.whole_seqno, self._snapshot = self.seqno, None
        return (Opcode.DCP_SNAPSHOT_MARKER, S.SUCCESS) if self._needs_ack else None

    def _open_snapshot(self, marker):
        if marker.start_seqno > marker.end_seqno:
            return marker.opcode, S.EINVAL
        if marker.end_seqno < self.seqno:
            return marker.opcode, S.ERANGE
        if self._snapshot is not None and marker.start_seqno > self._snapshot[1]:
            raise OrderBrokenError
        start = marker.start_seqno if self._snapshot is None else min(marker.start_seqno, self._snapshot[0])
        self._snapshot = start, marker.end_seqno
        self._needs_ack = bool(marker.flags & SnapshotFlag.ACK)
        return None


@settings(max_examples=scaled(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(MESSAGES, max_size=25))
def test_copy_has_the_accepted_changes_and_nothing_else(node, client, messages):
    client.ask(DelVbucket())
    make_replica(client)
    model = CopyModel()
    with producing(node) as peer:
        peer.open_consumer().add_stream()
        peer.accept()
        try:
            for message in messages:
                peer.send(replace(message, opaque=peer.opaque))
                if (reply := model.receive(message)) is not None:
                    frame = peer.receive()
                    assert (frame.opcode, frame.specific) == reply
            peer.settle()
        except OrderBrokenError:
            assert peer.ended()
    assert read_history(node) == (model.seqno, model.whole_seqno)
    vbucket = node.buckets["default"].store.vbuckets[0]
    found = {key: vbucket.get(DEFAULT_PREFIX + key) for key in model.documents}
    assert {key: item and bytes(item.value) for key, item in found.items()} == model.documents
