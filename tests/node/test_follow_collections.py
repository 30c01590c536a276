"""A bridge to a bucket with collections: the copy has them too, with their events, and values with what is in them."""

import pytest

from penstock.errors import RemoteProtocolError
from penstock.node.mirror.received_change import convert_change
from penstock.store.documents.conflict import Meta
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.flags import Datatype, OpenFlag, StreamFlag
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.dcp import SystemEvent
from penstock.wire.messages.dcp_values import pack_xattrs
from tests.node.manifests import ALE, ALES, DEFAULT, LAGER, LAGERS, make_beers, make_key, set_scopes
from tests.node.test_follow import VBUCKETS, bridge, original
from tests.node.watch import run, until
from tests.node.wire_client import connected

EVERYTHING = OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
XATTRS = pack_xattrs({"_sync": b'{"a":1}', "user": b"2"})


def seen(node):
    """Return all that a consumer gets that wants everything; whether lagers were dropped, or already erased, is one."""
    with connected(node, "beer") as client:
        client.hello(Feature.COLLECTIONS, Feature.XATTR).open(flags=EVERYTHING)
        for name in ("enable_noop", "enable_expiry_opcode", "flatbuffers_system_events"):
            assert client.control(name, "true") == Status.SUCCESS
        found = []
        for vbucket in range(VBUCKETS):
            client.stream(vbucket, flags=StreamFlag.TO_LATEST, opaque=vbucket)
            found.append([each for each in client.changes() if not each.key.startswith(make_key(LAGERS, b""))])
        return found


def manifest(node):
    return node.buckets["beer"].store.manifests.current


def history(node):
    return [
        (each.history.failover_log, each.changes.high_seqno, each.history.whole_seqno)
        for each in node.buckets["beer"].store.vbuckets
    ]


def attributes(node):
    """Store a document with extended attributes, and a tombstone with such."""

    def store():
        served = node.buckets["beer"]
        vbucket = served.store.vbuckets[1]
        vbucket.set(make_key(ALES, b"with"), XATTRS + b"{}", datatype=int(Datatype.XATTR | Datatype.JSON))
        meta = Meta(cas=1, rev_seqno=1, datatype=int(Datatype.XATTR), deleted=True)
        vbucket.incoming.store_with_meta(Event.DELETION, make_key(0, b"gone"), pack_xattrs({"_sync": b"1"}), meta)
        served.changed.add(1)
        served.notify()

    run(node, store)


def follow(second, first):
    expected, there = run(first, lambda: (history(first), manifest(first)))
    until(second, lambda: history(second) == expected and manifest(second).has_same_content(there))


def test_copy_has_the_collections_of_the_upstream():
    with original() as first, connected(first, "beer") as writer:
        writer.hello(Feature.COLLECTIONS)
        set_scopes(writer, 1, DEFAULT, make_beers(ALE, LAGER))
        for vbucket in range(VBUCKETS):
            for collection in (0, ALES, LAGERS, ALES):
                writer.set(make_key(collection, b"%d" % vbucket), b"v", vbucket=vbucket, flags=3)
            writer.delete(make_key(0, b"%d" % vbucket), vbucket=vbucket)
        attributes(first)
        with bridge(first, "dcp") as second:
            follow(second, first)
            assert seen(second) == seen(first)
            stout = {"name": "stouts", "uid": "200"}
            set_scopes(writer, 2, DEFAULT, make_beers({**ALE, "maxTTL": 9}, LAGER, stout))
            set_scopes(writer, 3, DEFAULT, make_beers({**ALE, "maxTTL": 9}, stout))
            writer.set(make_key(0x200), b"new", vbucket=2)
            follow(second, first)
            assert seen(second) == seen(first)
            assert any(isinstance(each, SystemEvent) for messages in seen(second) for each in messages)


@pytest.mark.parametrize("protocol", ["upr", "tap"])
def test_dialects_without_collections_fill_the_default_collection(protocol):
    with original() as first, connected(first, "beer") as writer:
        writer.hello(Feature.COLLECTIONS)
        set_scopes(writer, 1, DEFAULT, make_beers(ALE))
        for collection in (ALES, 0, ALES):
            writer.set(make_key(collection), b"v")
        with bridge(first, protocol) as second:
            vbucket = second.buckets["beer"].store.vbuckets[0]
            until(second, lambda: vbucket.get(make_key(0)) is not None)
            assert run(second, lambda: vbucket.get(make_key(ALES))) is None


WRONG = [
    Change(3, 1, 1, event=Event.FLUSH),
    Change(3, 1, 1, event="whatever"),
    Change(3, 1, 1, event=Event.MUTATION, key=b""),
    Change(3, 1, 1, event=Event.DELETION, key=bytes(251)),
]


@pytest.mark.parametrize("change", WRONG)
def test_invalid_rows_are_refused(change):
    with pytest.raises(RemoteProtocolError, match="vbucket 3: "):
        convert_change(change)
