"""The node as a DCP consumer against a model of its rules."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.wire.codec.constants import Feature
from penstock.wire.codec.flags import Datatype, SnapshotFlag
from penstock.wire.codec.frame import cut_frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status as S
from penstock.wire.messages.dcp import Deletion, DeletionV2, Expiration, Mutation, SeqnoAdvanced, SnapshotMarker
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.kv import DelVbucket, Noop
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
        accepted: the accepted changes, in order.
    """

    def __init__(self):
        self.seqno = self.whole_seqno = 0
        self.documents = {}
        self._snapshot = None
        self._needs_ack = False
        self.accepted = []

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
            self.accepted.append(message)
            self.documents[message.key] = message.value if isinstance(message, Mutation) else None
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


PLACES = st.integers(0, 79)
REVISIONS = st.integers(0, 5)
XATTRS = pack_xattrs({"_a": b"1"})
REGULAR = st.one_of(  # stored as columns
    st.builds(Mutation, key=KEYS, value=st.just(XATTRS + b"v"), datatype=st.just(Datatype.XATTR), cas=st.just(6)),
    st.builds(
        DeletionV2,
        key=KEYS,
        value=st.just(XATTRS),
        datatype=st.just(Datatype.XATTR),
        cas=st.just(6),
        delete_time=st.just(5),
    ),
    st.builds(Mutation, key=KEYS, value=st.binary(max_size=40), flags=NUMBERS, nru=st.integers(0, 3), cas=st.just(5)),
    st.builds(Mutation, key=KEYS, value=st.just(b""), expiry=st.just(2**31), rev_seqno=REVISIONS, cas=st.just(77)),
    st.builds(DeletionV2, key=KEYS, delete_time=st.just(5), cas=st.just(8), rev_seqno=REVISIONS),
    st.builds(Expiration, key=KEYS, delete_time=st.just(5), cas=st.just(9), rev_seqno=REVISIONS),
)
OTHERS = st.one_of(  # stored one by one
    st.builds(Mutation, key=KEYS, cas=st.sampled_from([0, 2**63])),
    st.builds(DeletionV2, key=KEYS, cas=st.just(8)),
    st.builds(Deletion, key=KEYS, cas=st.just(7), rev_seqno=REVISIONS),
)


@settings(max_examples=scaled(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(REGULAR, min_size=24, max_size=80),
    others=st.dictionaries(PLACES, OTHERS, max_size=2),
    steps=st.dictionaries(PLACES, st.sampled_from([0, 2, 5]), max_size=2),
    collections=st.booleans(),
)
def test_changes_of_one_write_are_stored_like_single_ones(node, client, changes, others, steps, collections):
    """Consecutive messages of one read are stored as columns; the model has one message at a time."""
    messages, seqno = [], 0
    for place, change in enumerate(changes):
        seqno += steps.get(place, 1)
        change = others.get(place, change)
        messages.append(replace(change, key=b"\0" * collections + change.key, by_seqno=seqno))
    messages.insert(0, SnapshotMarker(start_seqno=0, end_seqno=seqno, flags=1))
    client.ask(DelVbucket())
    make_replica(client)
    model, replies = CopyModel(), []
    with producing(node) as peer:
        if collections:
            peer.hello(Feature.XATTR, Feature.COLLECTIONS)
        else:
            peer.hello(Feature.XATTR)
        peer.open_consumer().add_stream()
        peer.accept()
        peer.send(*(replace(message, opaque=peer.opaque) for message in messages), Noop())
        try:
            for message in messages:
                if (reply := model.receive(message)) is not None:
                    replies.append(reply)
            for reply in (*replies, (Opcode.NOOP, S.SUCCESS)):
                frame = peer.receive()
                assert (frame.opcode, frame.specific) == reply
        except OrderBrokenError:
            for _ in replies:
                peer.receive()
            assert peer.ended()
    assert read_history(node) == (model.seqno, model.whole_seqno)
    newest = {message.key[collections:]: message for message in model.accepted}
    stored = {key: read_stored(node, key) for key in newest}
    for key, message in newest.items():
        assert describe(stored[key]) == describe(message)
        assert not message.cas or stored[key].cas == message.cas
        assert isinstance(message, Mutation) or stored[key].delete_time


def read_stored(node, key):
    """Return the newest change of a key in the log."""
    rows, row, _ = node.buckets["default"].store.vbuckets[0].changes.look_up(DEFAULT_PREFIX + key)
    message = decode_frame(cut_frame(memoryview(rows.buffer), rows.offsets_at[row]))
    assert (message.key, message.opaque) == (DEFAULT_PREFIX + key, 0)
    return message


def describe(message):
    """Return the fields that a copy keeps of a change; a missing time of a deletion is replaced."""
    kept = ("by_seqno", "rev_seqno", "flags", "expiry", "nru")
    about = DeletionV2 if isinstance(message, Deletion) else type(message)
    return about, bytes(message.value), *(getattr(message, name, 0) for name in kept)
