"""The value of a stream request, and filters that follow events of collections."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import StatusError
from penstock.node.streams.stream_filter import FilterRequest, StreamFilter, read_filter_request
from penstock.store.history.event_frames import pack_events
from penstock.wire.codec.constants import SystemEventKind
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.system_event import CreatedCollection, CreatedScope, DroppedCollection, DroppedScope

K = SystemEventKind
NAMES = st.sampled_from(["uid", "sid", "collections", "scope", "purge_seqno", "cts", "whatever"])
JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("a")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
VALUES = st.binary(max_size=40) | st.dictionaries(NAMES, JSON_VALUES, max_size=3).map(
    lambda document: json.dumps(document).encode()
)


@given(VALUES)
@example(b"9" * 5000)
@example(b'{"sid":' + b"9" * 5000 + b"}")
@example(b'{"purge_seqno":"' + b"9" * 5000 + b'"}')
def test_any_request_value_is_read_or_refused(value):
    found = read_or_refused(value)
    if isinstance(found, FilterRequest):
        assert found.collections is None or all(0 <= one < 2**32 for one in found.collections)
        assert found.stream_id is None or 1 <= found.stream_id <= 65535
    else:
        assert found in {Status.EINVAL, Status.DCP_STREAMID_INVALID}


def read_or_refused(value):
    try:
        return read_filter_request(value)
    except StatusError as error:
        return error.status


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", FilterRequest()),
        (b"{}", FilterRequest()),
        (b'{"uid":"ff","other":[]}', FilterRequest()),
        (b'{"collections":["0x8","A","8"],"sid":7}', FilterRequest(collections=(8, 10), stream_id=7)),
        (b'{"scope":"0"}', FilterRequest(scope=0)),
        (b'{"purge_seqno":"18446744073709551615"}', FilterRequest(purge_seqno=2**64 - 1)),
    ],
)
def test_request_value_is_decoded(value, expected):
    assert read_filter_request(value) == expected


def make_event(kind, subject):
    (event,) = pack_events([(kind, subject)])
    return event


BEGINS = make_event(K.COLLECTION_BEGIN, CreatedCollection(1, 8, 9, "ales"))
CHANGES = make_event(K.COLLECTION_MODIFY, CreatedCollection(1, 8, 9, "ales", max_ttl=1))
ENDS = make_event(K.COLLECTION_END, DroppedCollection(1, 8, 9))
CREATES = make_event(K.SCOPE_CREATE, CreatedScope(1, 8, "beers"))
DROPS = make_event(K.SCOPE_DROP, DroppedScope(1, 8))
EVENTS = (CREATES, BEGINS, CHANGES, ENDS, DROPS)

FILTERS = [
    ("all", StreamFilter, [True] * 5, False),
    ("the collection", lambda: StreamFilter([9]), [False, True, True, True, False], True),
    ("it and another", lambda: StreamFilter([9, 10]), [False, True, True, True, False], False),
    ("another", lambda: StreamFilter([10]), [False] * 5, False),
    ("its scope", lambda: StreamFilter([], scope=8), [True] * 5, True),
    ("another scope", lambda: StreamFilter([], scope=7), [False] * 5, False),
    ("the default collection, bare", lambda: StreamFilter([0], sends_events=False), [False] * 5, False),
]


@pytest.mark.parametrize(("make", "sent", "ends"), [pytest.param(*row, id=name) for name, *row in FILTERS])
def test_filter_sends_events_of_its_collections(make, sent, ends):
    chosen = make()
    assert [chosen.apply_event(event) for event in EVENTS] == sent
    assert chosen.is_empty == ends


def test_scope_filter_follows_its_collections():
    chosen, owners = StreamFilter([], scope=8), np.array([0, 9, 10, -1])
    assert chosen.select(owners).tolist() == [False] * 4
    chosen.apply_event(BEGINS)
    assert chosen.select(owners).tolist() == [False, True, False, False]
    chosen.apply_event(ENDS)
    assert not chosen.select(owners).any()
    assert not chosen.is_empty


def test_key_of_an_unknown_collection_is_not_sent():
    assert StreamFilter().select(np.array([-1, 0])).tolist() == [False, True]
