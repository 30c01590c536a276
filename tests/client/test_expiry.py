"""The expiry of documents at all doors of the client: seconds from now, or the time of the expiry."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import penstock
from penstock.client.documents.document import LONGEST_DURATION, encode_expiry
from penstock.client.documents.row_columns import RowColumns
from penstock.errors import UsageError
from penstock.wire.codec.constants import LONGEST_RELATIVE

NOW = 1_800_000_000.75
DAY = 24 * 60 * 60
EXPIRIES = [
    (0, 0),
    (1, 1),
    (LONGEST_RELATIVE, LONGEST_RELATIVE),
    (LONGEST_RELATIVE + 1, 1_800_000_000 + LONGEST_RELATIVE + 1),
    (60 * DAY, 1_800_000_000 + 60 * DAY),
    (LONGEST_DURATION, 1_800_000_000 + LONGEST_DURATION),
    (LONGEST_DURATION + 1, LONGEST_DURATION + 1),
    (2_000_000_000, 2_000_000_000),
    (2**32 - 1, 2**32 - 1),
]


@pytest.mark.parametrize(("expiry", "encoded"), EXPIRIES)
def test_numbers_are_seconds_from_now_or_unix_time(expiry, encoded, monkeypatch):
    assert encode_expiry(expiry, NOW) == encoded
    monkeypatch.setattr(time, "time", lambda: NOW)
    assert RowColumns(pa.table({"expiry": [expiry, None]})).read_expiries().tolist() == [encoded, 0]


@pytest.mark.parametrize(
    ("expiry", "encoded"),
    [
        (timedelta(0), 0),
        (timedelta(microseconds=1), 1),
        (timedelta(seconds=1.5), 2),
        (timedelta(days=30), LONGEST_RELATIVE),
        (timedelta(days=60), 1_800_000_000 + 60 * DAY),
        (datetime(2100, 1, 1, tzinfo=UTC), 4102444800),
        (datetime(2020, 1, 1, tzinfo=UTC), 1577836800),
        (datetime(1970, 1, 1, tzinfo=UTC), LONGEST_RELATIVE + 1),
        (datetime(1970, 1, 20, tzinfo=UTC), LONGEST_RELATIVE + 1),
    ],
)
def test_durations_and_times_are_encoded(expiry, encoded):
    assert encode_expiry(expiry, NOW) == encoded


def test_timestamps_of_a_column_are_times_and_never_durations():
    times = [datetime(2100, 1, 1), None, datetime(1970, 1, 1), datetime(1970, 1, 20)]
    source = RowColumns(pa.table({"expiry": pa.array(times, pa.timestamp("us", "UTC"))}))
    assert source.read_expiries().tolist() == [4102444800, 0, LONGEST_RELATIVE + 1, LONGEST_RELATIVE + 1]
    assert source.faults == {}


@pytest.mark.parametrize(
    ("expiry", "text"),
    [
        (-1, "expiry is -1, expected seconds from now or Unix time, 0 to 4294967295"),
        (2**32, "expiry is 4294967296, expected seconds from now or Unix time, 0 to 4294967295"),
        (timedelta(seconds=-5), "expiry is -1 day, 23:59:55, expected 0 to 1576800000 seconds"),
        (timedelta(days=30_000), "expiry is 30000 days, 0:00:00, expected 0 to 1576800000 seconds"),
        (datetime(2100, 1, 1), "expiry is 2100-01-01 00:00:00, expected a time with a zone, from 1970 to 2106"),
        (datetime(1969, 1, 1, tzinfo=UTC), "expected a time with a zone, from 1970 to 2106"),
        (datetime(2107, 1, 1, tzinfo=UTC), "expected a time with a zone, from 1970 to 2106"),
    ],
)
def test_other_expiries_are_refused(expiry, text):
    with pytest.raises(UsageError, match=text):
        encode_expiry(expiry, NOW)


def test_documents_of_every_command_live_for_sixty_days():
    async def main(url):
        days = 60 * DAY
        async with penstock.connect(url) as bucket, penstock.BulkWriter(url) as writer:
            await bucket.upsert("upsert", b"1", expiry=days)
            await bucket.upsert_many([("upsert_many", b"1")], expiry=timedelta(days=60))
            cas = await bucket.insert("insert", b"1", expiry=days)
            await bucket.upsert("replace", b"1")
            await bucket.replace("replace", b"1", cas=(await bucket.get("replace")).cas, expiry=days)
            await writer.upsert([b"bulk"], [b"1"], expiry=days)
            assert cas
            return {change.key: change.expiry async for change in bucket.changes(stop="now")}

    with penstock.Node.running(buckets=["beer"], vbuckets=4) as node:
        found = asyncio.run(main(node.url("beer")))
    assert found.keys() == {b"upsert", b"upsert_many", b"insert", b"replace", b"bulk"}
    assert all(abs(expiry - time.time() - 60 * DAY) < DAY for expiry in found.values())
