"""The setting `penstock_filter` of a DCP connection, on the wire: refused filters, and the messages of a stream."""

import json

import pytest

from penstock.client.filters.filter_control import measure_regex
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.flags import OpenFlag, StreamFlag
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import (
    Control,
    Deletion,
    Mutation,
    OsoSnapshot,
    SeqnoAdvanced,
    SnapshotMarker,
    SystemEvent,
)
from tests.node.manifests import ALES, make_collection_filter, make_key
from tests.node.watch import run
from tests.node.wire_client import connected

S, F = Status, OpenFlag
SETTING = "penstock_filter"
ALE_KEYS = json.dumps({"key": "^ale"})


def summarize(consumer, **fields):
    """Stream up to the current end, and return the messages as tuples (class, seqno)."""
    assert consumer.stream(flags=StreamFlag.TO_LATEST, **fields).specific == S.SUCCESS
    return [(type(each), getattr(each, "by_seqno", None) or each.end_seqno) for each in consumer.changes()]


def test_changes_are_left_out_and_the_end_of_the_snapshot_is_sent(beer_writer, beer_consumer):
    assert beer_consumer.control(SETTING, ALE_KEYS) == S.SUCCESS
    for name in (b"ale", b"gin", b"ale2"):
        beer_writer.set(make_key(ALES, name), b"v")
    beer_writer.delete(make_key(ALES, b"ale"))
    beer_writer.delete(make_key(ALES, b"gin"))
    events = [(SystemEvent, seqno) for seqno in (1, 2, 3)]
    changes = [(Mutation, 6), (Deletion, 7), (SeqnoAdvanced, 8)]
    assert summarize(beer_consumer) == [(SnapshotMarker, 8), *events, *changes]
    only_ales = summarize(beer_consumer, value=make_collection_filter(ALES))
    assert only_ales == [(SnapshotMarker, 8), (SystemEvent, 2), *changes]
    assert beer_consumer.control(SETTING, '{"key": "^rum"}') == S.SUCCESS  # it holds for later streams
    assert summarize(beer_consumer, value=make_collection_filter(ALES))[2:] == [(SeqnoAdvanced, 8)]
    assert beer_consumer.control("enable_out_of_order_snapshots", "true") == S.SUCCESS
    assert beer_consumer.stream(flags=StreamFlag.TO_LATEST, value=make_collection_filter(ALES)).specific == S.SUCCESS
    messages = [*beer_consumer.changes()]
    assert [type(each) for each in messages] == [OsoSnapshot, SystemEvent, SeqnoAdvanced, OsoSnapshot]
    assert messages[2].by_seqno == 8


def test_position_moves_within_a_snapshot(node, beer_writer, beer_consumer):
    """Else a consumer of few changes would begin a large bucket again after each cut."""

    def fill():
        served = node.buckets["default"]
        for number in range(3000):
            served.store.vbuckets[0].set(b"\0gin%d" % number, b"v" * 1000)
        served.notify()

    run(node, fill)
    assert beer_consumer.control(SETTING, ALE_KEYS) == S.SUCCESS
    advances = [seqno for kind, seqno in summarize(beer_consumer) if kind is SeqnoAdvanced]
    assert advances == sorted({*advances})
    assert len(advances) > 2
    assert advances[-1] == 3003


REFUSED = [
    b"",
    b"{}",
    b"[1]",
    b'{"key": ""}',
    b'{"key": 1}',
    b'{"key": "("}',
    b'{"key": "a", "where": "b"}',
    b'{"value": "abv >"}',
    b'{"value": "REGEXP_CONTAINS(a, \'(\')"}',
    b'{"key": "\xff"}',
    b"[" * 8000,
    b'{"value": "%s"}' % (b"(" * 4000),
    b'{"value": "%s"}' % (b"NOT " * 1000),
    b'{"key": "%s"}' % (b"a" * 9000),
    b'{"key": "(a?b?c?d?){500}x"}',
    b'{"key": "(a|b)*a(a|b){500}c"}',
    b'{"key": "%s"}' % (b"a{0,1000}" * 20),
    b'{"key": "(?i)\\\\pL"}',
    b'{"key": "([)]?a?b?c?d?e?f?){1000}"}',
    b'{"value": "REGEXP_CONTAINS(a, \'(a|b)*a(a|b){90}c\')"}',
    # An escape of the expression's string hides the repetition.
    b'{"value": "REGEXP_CONTAINS(a, \'(a|b)*a(a|b)\\\\u007b90}c\')"}',
    b'{"value": "META().xattrs.owner = 1"}',
]


@pytest.mark.parametrize("value", REFUSED, ids=[repr(value[:40]) for value in REFUSED])
def test_filter_is_refused(beer_consumer, value):
    assert beer_consumer.status(Control(key=SETTING.encode(), value=value)) == S.EINVAL
    assert beer_consumer.control("enable_noop", "true") == S.SUCCESS


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("^hotel", 6),
        ("[0-9a-f]{8}-[0-9a-f]{4}", 11 + 8 + 12 + 4),
        ("(ab){10}", (4 + 4) * 10),
        (r"\p{Greek}", 1009),
        ("\xe9", 2),
        ("a{x}", 4),
    ],
)
def test_size_of_a_regular_expression(pattern, size):
    assert measure_regex(pattern) == size


def test_filter_and_settings_of_replicas_exclude_each_other(node, beer_writer, beer_consumer):
    with connected(node) as replica:
        replica.hello(Feature.COLLECTIONS).open("replica")
        replica.control("enable_noop", "true")
        assert replica.control("consumer_name", "replica") == S.SUCCESS
        assert replica.control(SETTING, ALE_KEYS) == S.NOT_SUPPORTED
    assert beer_consumer.control(SETTING, ALE_KEYS) == S.SUCCESS
    for name, value in (("enable_sync_writes", "true"), ("consumer_name", "replica")):
        assert beer_consumer.control(name, value) == S.NOT_SUPPORTED
    for flag in (StreamFlag.TAKEOVER, StreamFlag.CACHE_TRANSFER):
        assert beer_consumer.stream(flags=flag).specific == S.NOT_SUPPORTED
    with connected(node) as legacy:
        legacy.open("legacy")
        assert legacy.control(SETTING, ALE_KEYS) == S.NOT_SUPPORTED


def test_filter_reads_only_parts_that_the_connection_receives(node, beer_writer):
    with connected(node) as consumer:
        consumer.hello(Feature.COLLECTIONS).open("keys", F.PRODUCER | F.NO_VALUE)
        assert consumer.control(SETTING, json.dumps({"value": "abv > 1"})) == S.EINVAL
        assert consumer.control(SETTING, json.dumps({"value": "META().id = 'ale'"})) == S.SUCCESS
