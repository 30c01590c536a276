"""Changes without their values."""

import pytest

from penstock import Node, connect
from penstock.wire.columns import SMALL_RUN
from penstock.wire.constants import Datatype, Dialect
from penstock.wire.dcp_values import pack_xattrs
from penstock.wire.schema import Event
from tests.client.peer import in_loop
from tests.client.producer import deletion, marker, mutations, opened
from tests.node.watch import run

MANY = 2 * SMALL_RUN


@pytest.mark.parametrize("many", [1, MANY])
def test_a_row_has_neither_value_nor_its_datatype_though_both_were_sent(many):
    consumer, request = opened(values=False)
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
async def test_every_dialect_gives_keys_alone(protocol):
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
async def test_extended_attributes_come_without_the_values_behind_them():
    with Node.running(vbuckets=1) as node:
        vbucket = node.buckets["default"].store.vbuckets[0]
        value = pack_xattrs({"_sync": b"{}"}, b"body")
        for number in range(MANY):
            run(node, lambda key=b"\0%d" % number: vbucket.set(key, value, datatype=Datatype.XATTR))
        async with connect(node.url("default")) as bucket:
            rows = [row async for row in bucket.changes(stop="now", values=False, xattrs=True)]
            assert [(row.value, row.datatype, row.xattrs) for row in rows] == [(None, None, {"_sync": b"{}"})] * MANY
