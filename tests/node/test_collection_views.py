"""Consumers with any filter can rebuild the documents of their collections after any changes."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.node import Node
from penstock.wire.codec.constants import Feature, SystemEventKind
from penstock.wire.codec.flags import StreamFlag
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Deletion, Mutation, SnapshotMarker, SystemEvent
from penstock.wire.messages.system_event import unpack_system_event
from penstock.wire.values.collection_key import split_collection_key
from tests.examples import scaled
from tests.node.manifests import (
    ALE,
    ALES,
    BEERS,
    DEFAULT,
    LAGER,
    LAGERS,
    make_beers,
    make_collection_filter,
    make_filter_value,
    make_key,
    set_scopes,
)
from tests.node.wire_client import connected

KEYS = st.sampled_from([b"a", b"b", b"c"])
WHERE = st.sampled_from([0, ALES, LAGERS])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), WHERE, KEYS),
        st.tuples(st.just("delete"), WHERE, KEYS),
        st.tuples(st.just("drop"), st.sampled_from([ALES, LAGERS]), KEYS),
    ),
    max_size=30,
)
VIEWS = {
    "bare": (None, {0}),
    "all": (b"", {0, ALES, LAGERS}),
    "ales": (make_collection_filter(ALES), {ALES}),
    "lagers and default": (make_collection_filter(LAGERS, 0), {LAGERS, 0}),
    "scope": (make_filter_value(scope=f"{BEERS:x}"), {ALES, LAGERS}),
}


class RebuiltVbucket:
    """Documents of one vbucket, rebuilt by a consumer.

    Attributes:
        documents: values by collection id and key.
        end: end seqno of the current snapshot.
        seqno: newest received seqno.
    """

    def __init__(self):
        self.documents, self.end, self.seqno = {}, 0, 0

    def apply(self, message, bare):
        if isinstance(message, SnapshotMarker):
            assert self.seqno == self.end, "the previous snapshot is incomplete"
            assert message.end_seqno > self.seqno
            self.end = message.end_seqno
            return
        assert self.seqno < message.by_seqno <= self.end
        self.seqno = message.by_seqno
        if isinstance(message, Mutation | Deletion):
            owner, name = (0, message.key) if bare else split_collection_key(message.key)
            self.documents.pop((owner, name), None)
            if isinstance(message, Mutation):
                self.documents[owner, name] = message.value
        elif isinstance(message, SystemEvent) and message.event == SystemEventKind.COLLECTION_END:
            subject: Any = unpack_system_event(message.event, message.version, message.key, message.value)
            dropped = subject.collection_id
            self.documents = {each: value for each, value in self.documents.items() if each[0] != dropped}


@settings(max_examples=scaled(40), deadline=None)
@given(
    steps=STEPS,
    views=st.lists(st.sampled_from(sorted(VIEWS)), min_size=1, max_size=3),
    window=st.sampled_from([None, "100", "1000"]),
)
@example(  # the newest change of the scope is the end of a collection
    steps=[("set", ALES, b"a"), ("set", LAGERS, b"a"), ("drop", ALES, b"a")], views=["scope"], window=None
)
def test_consumers_receive_the_collections_of_their_filters(steps, views, window):
    with Node.running(vbuckets=1) as node, connected(node) as writer:
        writer.hello(Feature.COLLECTIONS)
        current = {ALES: ALE, LAGERS: LAGER}
        set_scopes(writer, 1, DEFAULT, make_beers(*current.values()))
        documents: dict[Any, Any] = {}
        uid = 1
        for number, (action, collection, name) in enumerate(steps):
            if action == "drop":
                if current.pop(collection, None):
                    uid += 1
                    set_scopes(writer, uid, DEFAULT, make_beers(*current.values()))
                documents = {each: value for each, value in documents.items() if each[0] != collection}
            elif collection in current or collection == 0:
                documents.pop((collection, name), None)
                if action == "set":
                    value = documents[collection, name] = b"%d" % number
                    assert writer.set(make_key(collection, name), value).specific == Status.SUCCESS
                else:
                    writer.delete(make_key(collection, name))
        for view in views:
            value, owners = VIEWS[view]
            with connected(node) as consumer:
                if value is not None:
                    consumer.hello(Feature.COLLECTIONS)
                consumer.open(view).control("enable_noop", "true")
                if window is not None:
                    consumer.control("connection_buffer_size", window)
                reply = consumer.stream(flags=StreamFlag.TO_LATEST, value=value or b"")
                if reply.specific == Status.UNKNOWN_COLLECTION:
                    assert owners - current.keys() - {0}
                    continue
                bucket = RebuiltVbucket()
                while (frame := consumer.receive()).opcode != Opcode.DCP_STREAM_END:
                    consumer.acknowledge(frame.size)
                    bucket.apply(decode_frame(frame), value is None)
                assert bucket.seqno == bucket.end
                assert bucket.documents == {each: v for each, v in documents.items() if each[0] in owners}
