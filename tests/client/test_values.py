"""Changes without their values, and values that are sent compressed."""

from dataclasses import replace
from random import Random

import pytest

from penstock import Node, connect
from penstock.client.connect.address import Compression
from penstock.client.feeds.collection_selection import StreamContent
from penstock.client.tap.tap_feed import TapFeed
from penstock.client.topology.item_counts import ItemCount
from penstock.errors import RemoteProtocolError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.columns.run_decoder import SMALL_RUN, list_changes
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Mutation
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.tap import TapMutation
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab
from penstock.wire.values.snappy import deflate
from tests.client.peer import Script, in_loop, reply
from tests.client.producer import deletion, marker, mutations, open_stream
from tests.client.receiver import Receiver
from tests.node.watch import run

MANY = 2 * SMALL_RUN


@pytest.mark.parametrize("many", [1, MANY])
def test_row_without_values_has_no_datatype_either(many):
    consumer, request = open_stream(content=StreamContent(values=False))
    rows = consumer.get(
        marker(request, 1, many + 1), mutations(request, *range(1, many + 1)), deletion(request, many + 1)
    )
    assert {(row.event, row.value, row.datatype) for row in rows} == {
        (Event.MUTATION, None, None),
        (Event.DELETION, None, None),
    }
    assert [row.key for row in rows[:many]] == [b"k%d" % number for number in range(1, many + 1)]


@pytest.mark.parametrize("protocol", Dialect)
@in_loop
async def test_every_dialect_can_deliver_only_keys(protocol):
    with Node.running(vbuckets=2) as node:
        async with connect(node.url("default")) as bucket:
            documents = {f"key-{number}": b"x" * 1000 for number in range(100)}
            await bucket.upsert_many(documents.items())
            await bucket.remove("key-7")
            rows = [row async for row in bucket.changes(stop="now", protocol=protocol, values=False)]
            assert {(row.key or b"").decode() for row in rows if row.event == Event.MUTATION} == documents.keys() - {
                "key-7"
            }
            assert {(row.value, row.datatype) for row in rows} == {(None, None)}


@in_loop
async def test_extended_attributes_are_delivered_without_values():
    with Node.running(vbuckets=1) as node:
        vbucket = node.buckets["default"].store.vbuckets[0]
        value = pack_xattrs({"_sync": b"{}"}, b"body")
        for number in range(MANY):
            run(node, lambda key=b"\0%d" % number: vbucket.set(key, value, datatype=Datatype.XATTR))
        async with connect(node.url("default")) as bucket:
            rows = [row async for row in bucket.changes(stop="now", values=False, xattrs=True)]
            assert [(row.value, row.datatype, row.xattrs) for row in rows] == [(None, None, {"_sync": b"{}"})] * MANY


# Compression on request


@pytest.mark.parametrize("many", [1, 4 * MANY])
@in_loop
async def test_compression_changes_bytes_on_the_wire_and_no_change(many):
    """Four documents compress well: plain and compressed, each with and without attributes. Random bytes do not."""
    attributes, body, seeded = pack_xattrs({"_sync": b"1"}), b'{"name":"%s"}' % (b"stout" * 90), Random(7)
    stored = [(body, 0), (attributes + body, Datatype.XATTR), (seeded.randbytes(500), 0)]
    stored += [(deflate(value), datatype | Datatype.SNAPPY) for value, datatype in stored[:2]]
    expected = [(body, None), (body, {"_sync": b"1"}), (stored[2][0], None), (body, None), (body, {"_sync": b"1"})]
    with Node.running(vbuckets=1) as node:
        vbucket = node.buckets["default"].store.vbuckets[0]
        for number, (value, datatype) in enumerate(stored * many):
            run(node, lambda key=b"\0%d" % number, value=value, of=datatype: vbucket.set(key, value, datatype=int(of)))
        received = {}
        for compression in Compression:
            url = f"{node.url('default')}?compression={compression}&flowControlBytes=65536&xattrs=true"
            async with connect(url) as bucket:
                rows = [row async for row in bucket.changes(stop="now")]
                assert [(row.value, row.xattrs) for row in rows] == expected * many
                assert {row.datatype for row in rows} == {0}
                async with await bucket.stream(stop="now") as stream:
                    batches = [batch async for batch in stream]
                    assert [change for batch in batches for change in list_changes(batch)] == rows
                received[compression] = stream.counts.received_bytes
        assert received[Compression.OFF] > 1.4 * received[Compression.AUTO] > 2 * received[Compression.FORCE]


# Compression without a request: Couchbase 3.1.6 compresses in every stream


def compress_values(*frames):
    """Return the same change messages with compressed values."""
    found = []
    for frame in FrameReceiver(Slab(1 << 20), run_dialect=None).feed(b"".join(frames)):
        assert isinstance(frame, Frame)
        message = decode_frame(frame)
        assert isinstance(message, Mutation)
        packed = replace(message, value=deflate(message.value), datatype=Datatype.SNAPPY | Datatype.JSON)
        found.append(packed.encode())
    return b"".join(found)


@pytest.mark.parametrize("many", [1, MANY])
def test_stream_delivers_compressed_values_inflated(many):
    consumer, request = open_stream()
    plain, packed = range(1, many + 1), range(many + 1, 2 * many + 1)
    rows = consumer.get(
        marker(request, 1, 2 * many), mutations(request, *plain), compress_values(mutations(request, *packed))
    )
    assert [row.seqno for row in rows] == [*plain, *packed]
    assert {(row.value, row.datatype) for row in rows[:many]} == {(b"value", 0)}
    assert {(row.value, row.datatype) for row in rows[many:]} == {(b"value", Datatype.JSON)}
    consumer.give()
    assert consumer.acknowledged <= consumer.charged  # counted in their compressed size


@pytest.mark.parametrize("many", [1, MANY])
def test_tap_delivers_compressed_values_inflated(many):
    consumer = Receiver(TapFeed(8, range(8), window=1 << 16))
    consumer.feed.take_requests(lambda: 1)
    message = TapMutation(vbucket=3, key=b"k", value=deflate(b"{}"), datatype=Datatype.SNAPPY | Datatype.JSON)
    rows = consumer.get(*[message.encode()] * many)
    assert [(row.value, row.datatype) for row in rows] == [(b"{}", Datatype.JSON)] * many


@pytest.mark.parametrize("many", [1, MANY])
def test_a_tap_dump_counts_compressed_documents(many):
    """Inflation moves the messages, so the opcodes must be read from the received bytes."""
    consumer = Receiver(TapFeed(8, range(8), window=1 << 16, until_now=True))
    counted = {3: ItemCount(many)}
    consumer.feed.dump.set_counts(counted)
    consumer.feed.take_requests(lambda: 1)
    message = TapMutation(vbucket=3, key=b"k", value=deflate(b'"%s"' % bytes(99)), datatype=Datatype.SNAPPY)
    assert len(consumer.get(*[message.encode()] * many)) == many
    assert consumer.feed.dump.record_connection_end()
    consumer.feed.dump.set_counts(counted)
    assert consumer.feed.is_done
    assert consumer.feed.failures.newest is None


@pytest.mark.parametrize("many", [1, MANY])
def test_a_value_that_cannot_be_inflated_ends_a_stream(many):
    consumer, request = open_stream()
    bad = Mutation(
        vbucket=3, opaque=request.opaque, key=b"k", value=b"\x05abc", by_seqno=many + 1, datatype=Datatype.SNAPPY
    ).encode()
    with pytest.raises(RemoteProtocolError, match="vbucket 3: DCP_MUTATION of key b'k': compressed value of 4 bytes"):
        consumer.give(marker(request, 1, many + 1), mutations(request, *range(1, many + 1)), bad)


@in_loop
async def test_a_document_is_read_inflated():
    values = {b"good": deflate(b"{}"), b"bad": b"\x05abc"}

    def answer(peer, frame):
        if frame.opcode != Opcode.GET:
            return None
        return reply(frame, value=values[frame.key], extras=bytes(4), datatype=Datatype.SNAPPY | Datatype.JSON)

    async with Script(answer) as script, connect(script.url()) as bucket:
        document = await bucket.get("good")
        assert (document.value, document.datatype) == (b"{}", Datatype.JSON)
        with pytest.raises(RemoteProtocolError, match="GET b'bad': compressed value of 4 bytes"):
            await bucket.get("bad")
