"""Values of stream requests, and stream filters that follow the events of their collections."""

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
    found = read_or_get_status(value)
    if isinstance(found, FilterRequest):
        assert found.collections is None or all(0 <= one < 2**32 for one in found.collections)
        assert found.stream_id is None or 1 <= found.stream_id <= 65535
    else:
        assert found in {Status.EINVAL, Status.DCP_STREAMID_INVALID}


def read_or_get_status(value):
    try:
        return read_filter_request(value)
    except StatusError as error:
        return error.status


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", FilterRequest()),
        (b'{"uid":"ff","other":[]}', FilterRequest()),
        (b'{"uid":1}', FilterRequest()),
        (b'{"uid":null}', FilterRequest()),
        (b'{"collections":[]}', FilterRequest(collections=())),
        (b'{"collections":["8","A","8"],"sid":7}', FilterRequest(collections=(8, 10), stream_id=7)),
        (b'{"scope":"0"}', FilterRequest(scope=0)),
        (b'{"purge_seqno":"18446744073709551615"}', FilterRequest(purge_seqno=2**64 - 1)),
    ],
)
def test_request_value_is_decoded(value, expected):
    assert read_filter_request(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        b"{}",
        b"[]",
        b'"8"',
        b'{"other":1}',
        b'{"collections":["0x8"]}',
        b'{"collections":["8 "]}',
        b'{"collections":["000000008"]}',
        b'{"collections":[""]}',
        b'{"collections":[8]}',
        b'{"collections":["2"]}',
        b'{"collections":"8"}',
        b'{"scope":"1"}',
        b'{"scope":"7"}',
        b'{"scope":8}',
        b'{"scope":"8","collections":[]}',
        b'{"sid":-1}',
        b'{"sid":1.0}',
    ],
)
def test_invalid_request_value_is_refused(value):
    assert read_or_get_status(value) == Status.EINVAL


def make_event(kind, subject):
    (event,) = pack_events([(kind, subject)])
    return event


BEGIN_EVENT = make_event(K.COLLECTION_BEGIN, CreatedCollection(1, 8, 9, "ales"))
MODIFY_EVENT = make_event(K.COLLECTION_MODIFY, CreatedCollection(1, 8, 9, "ales", max_ttl=1))
END_EVENT = make_event(K.COLLECTION_END, DroppedCollection(1, 8, 9))
CREATE_EVENT = make_event(K.SCOPE_CREATE, CreatedScope(1, 8, "beers"))
DROP_EVENT = make_event(K.SCOPE_DROP, DroppedScope(1, 8))
EVENTS = (CREATE_EVENT, BEGIN_EVENT, MODIFY_EVENT, END_EVENT, DROP_EVENT)

FILTERS = [
    ("all", StreamFilter, [True] * 5, False),
    ("the collection", lambda: StreamFilter([9]), [False, True, True, True, False], True),
    ("the collection and another", lambda: StreamFilter([9, 10]), [False, True, True, True, False], False),
    ("another", lambda: StreamFilter([10]), [False] * 5, False),
    ("its scope", lambda: StreamFilter([], scope=8), [True] * 5, True),
    ("another scope", lambda: StreamFilter([], scope=7), [False] * 5, False),
    ("the default collection, bare", lambda: StreamFilter([0], sends_events=False), [False] * 5, False),
]


@pytest.mark.parametrize(("make_filter", "sends", "is_empty"), [pytest.param(*row, id=name) for name, *row in FILTERS])
def test_filter_sends_events_of_its_collections(make_filter, sends, is_empty):
    stream_filter = make_filter()
    assert [stream_filter.apply_event(event) for event in EVENTS] == sends
    assert stream_filter.is_empty == is_empty


def test_scope_filter_follows_its_collections():
    stream_filter, owners = StreamFilter([], scope=8), np.array([0, 9, 10, -1])
    assert stream_filter.select(owners).tolist() == [False] * 4
    stream_filter.apply_event(BEGIN_EVENT)
    assert stream_filter.select(owners).tolist() == [False, True, False, False]
    stream_filter.apply_event(END_EVENT)
    assert not stream_filter.select(owners).any()
    assert not stream_filter.is_empty


def test_key_of_an_unknown_collection_is_not_sent():
    assert StreamFilter().select(np.array([-1, 0])).tolist() == [False, True]
