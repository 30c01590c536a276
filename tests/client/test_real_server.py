"""The client against a data service of Couchbase, which the environment names; without it these tests are skipped.

PENSTOCK_REAL_SERVER names an empty bucket. PENSTOCK_USERNAME and PENSTOCK_PASSWORD have the login.
"""

import asyncio
import os
from uuid import uuid4

import pytest

import penstock
from penstock.wire.columns.schema import Event

URL = os.environ.get("PENSTOCK_REAL_SERVER", "")
USERNAME, PASSWORD = os.environ.get("PENSTOCK_USERNAME", ""), os.environ.get("PENSTOCK_PASSWORD", "")

pytestmark = pytest.mark.skipif(not URL, reason="PENSTOCK_REAL_SERVER names no bucket of a Couchbase server")


@pytest.fixture
def names() -> list[str]:
    """Keys that no earlier test used."""
    return [f"{uuid4()}-{number}" for number in range(200)]


def read_newest() -> dict[str, tuple[str, bytes | None]]:
    """Return key -> event and value of its newest change, up to now."""
    found: dict[str, tuple[str, bytes | None]] = {}
    for batch in penstock.read_changes(URL, stop="now", username=USERNAME, password=PASSWORD):
        for row in batch.select(["event", "key", "value"]).to_pylist():
            if row["key"] is not None:
                found[row["key"].decode()] = row["event"], row["value"]
    return found


async def change(names: list[str], large: int) -> None:
    """Store all documents, one of them large, change every second, and remove every fourth."""
    async with penstock.connect(URL, username=USERNAME, password=PASSWORD) as bucket:
        await bucket.upsert_many((name, b'{"version": 1}') for name in names)
        await bucket.upsert_many((name, b'{"version": 2}') for name in names[::2])
        await bucket.remove_many(names[::4])
        await bucket.upsert(names[1], b"x" * large)


def test_changes_are_read(names):
    asyncio.run(change(names, large=20 << 20))
    found = read_newest()
    for number, name in enumerate(names):
        expected = Event.DELETION if number % 4 == 0 else Event.MUTATION
        assert found[name][0] == expected.value
    assert found[names[2]][1] == b'{"version": 2}'
    assert found[names[3]][1] == b'{"version": 1}'
    assert found[names[1]][1] == b"x" * (20 << 20)
