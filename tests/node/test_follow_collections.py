"""Bridges to a bucket with collections: the copy has the same collections, events and whole values."""

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
from tests.node.test_follow import VBUCKETS, run_bridge, run_upstream
from tests.node.watch import run, until
from tests.node.wire_client import connected

EVERYTHING = OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
XATTRS = pack_xattrs({"_sync": b'{"a":1}', "user": b"2"})


def read_streams(node):
    """Return the messages of all vbuckets for a consumer with all options.

    Documents of lagers are left out, since timing decides when a dropped collection is erased.
    """
    with connected(node, "beer") as client:
        client.hello(Feature.COLLECTIONS, Feature.XATTR).open(flags=EVERYTHING)
        for name in ("enable_noop", "enable_expiry_opcode", "flatbuffers_system_events"):
            assert client.control(name, "true") == Status.SUCCESS
        found = []
        for vbucket in range(VBUCKETS):
            client.stream(vbucket, flags=StreamFlag.TO_LATEST, opaque=vbucket)
            found.append([each for each in client.changes() if not each.key.startswith(make_key(LAGERS, b""))])
        return found


def get_manifest(node):
    return node.buckets["beer"].store.manifests.current


def get_history(node):
    return [
        (each.history.failover_log, each.changes.high_seqno, each.history.whole_seqno)
        for each in node.buckets["beer"].store.vbuckets
    ]


def store_attributes(node):
    """Store a document and a tombstone with extended attributes."""

    def store():
        served = node.buckets["beer"]
        vbucket = served.store.vbuckets[1]
        vbucket.set(make_key(ALES, b"with"), XATTRS + b"{}", datatype=int(Datatype.XATTR | Datatype.JSON))
        meta = Meta(cas=1, rev_seqno=1, datatype=int(Datatype.XATTR), deleted=True)
        vbucket.incoming.store_with_meta(Event.DELETION, make_key(0, b"gone"), pack_xattrs({"_sync": b"1"}), meta)
        served.changed.add(1)
        served.notify()

    run(node, store)


def wait_until_copied(second, first):
    expected, upstream_manifest = run(first, lambda: (get_history(first), get_manifest(first)))
    until(second, lambda: get_history(second) == expected and get_manifest(second).has_same_content(upstream_manifest))


def test_copy_has_the_collections_of_the_upstream():
    with run_upstream() as first, connected(first, "beer") as writer:
        writer.hello(Feature.COLLECTIONS)
        set_scopes(writer, 1, DEFAULT, make_beers(ALE, LAGER))
        for vbucket in range(VBUCKETS):
            for collection in (0, ALES, LAGERS, ALES):
                writer.set(make_key(collection, b"%d" % vbucket), b"v", vbucket=vbucket, flags=3)
            writer.delete(make_key(0, b"%d" % vbucket), vbucket=vbucket)
        store_attributes(first)
        with run_bridge(first, "dcp") as second:
            wait_until_copied(second, first)
            assert read_streams(second) == read_streams(first)
            stout = {"name": "stouts", "uid": "200"}
            set_scopes(writer, 2, DEFAULT, make_beers({**ALE, "maxTTL": 9}, LAGER, stout))
            set_scopes(writer, 3, DEFAULT, make_beers({**ALE, "maxTTL": 9}, stout))
            writer.set(make_key(0x200), b"new", vbucket=2)
            wait_until_copied(second, first)
            assert read_streams(second) == read_streams(first)
            assert any(isinstance(each, SystemEvent) for messages in read_streams(second) for each in messages)


@pytest.mark.parametrize("protocol", ["upr", "tap"])
def test_dialects_without_collections_fill_the_default_collection(protocol):
    with run_upstream() as first, connected(first, "beer") as writer:
        writer.hello(Feature.COLLECTIONS)
        set_scopes(writer, 1, DEFAULT, make_beers(ALE))
        for collection in (ALES, 0, ALES):
            writer.set(make_key(collection), b"v")
        with run_bridge(first, protocol) as second:
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
