"""Reads of `format("dcp")` with mitigateRollback: they end where the active node and all replicas have the changes."""

import asyncio

import pytest

import penstock
from penstock.errors import UsageError
from tests.client.test_durable_writes import ALL, running_pair
from tests.client.test_mitigation import write
from tests.node.frame_proxy import replicating
from tests.patience import PATIENCE
from tests.spark.buckets import read_batch


async def write_and_replicate(active, replica):
    with replicating(active, replica, "beer", ALL, consumer_name="b"):
        _, tokens = await write(active, "key")
        async with penstock.connect(active.url("beer")) as bucket:
            await bucket.wait_for(tokens, replicas=1, persisted=2, timeout=PATIENCE)


def test_reads_end_where_all_copies_have_the_changes(follow):
    with running_pair() as (active, replica):
        url = active.url("beer")
        asyncio.run(write_and_replicate(active, replica))
        asyncio.run(write(active, "more"))
        assert read_batch(url).num_rows == 40
        assert read_batch(url, mitigateRollback="true").num_rows == 20
        stream = follow(url, mitigateRollback="true")
        assert sum(rows.num_rows for rows in stream.all()) == 20
        asyncio.run(write_and_replicate(active, replica))
        assert sum(rows.num_rows for rows in stream.all()) == 40  # with 20 new versions of the first documents


def test_other_dialects_are_refused():
    with running_pair() as (active, _), pytest.raises(UsageError, match="mitigateRollback with protocol tap"):
        read_batch(active.url("beer"), mitigateRollback="true", protocol="tap")
