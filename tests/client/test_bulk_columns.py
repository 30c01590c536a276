"""BulkWriter with columns: upsert and delete."""

import pyarrow as pa
import pytest

from penstock import BulkWriter, connect
from penstock.errors import UsageError
from penstock.wire.codec.statuses import Status
from tests.client.peer import in_loop


@in_loop
async def test_documents_are_stored_and_deleted_from_lists_and_arrow_columns(running):
    async with BulkWriter(running.url()) as writer, connect(running.url()) as bucket:
        stored = await writer.upsert(["a", "ä"], pa.array([b"1", b"2"]), flags=7)
        assert stored.faults == {}
        found = await bucket.get_many(["a", "ä"])
        assert [each and (each.value, each.flags) for each in found] == [(b"1", 7), (b"2", 7)]
        assert [each and each.cas for each in found] == stored.cas.tolist()
        deleted = await writer.delete(pa.array(["a", "none"]))
        assert deleted.status.tolist() == [Status.SUCCESS, Status.KEY_ENOENT]
        assert await bucket.get_many(["a", "ä"]) == [None, found[1]]
        table = pa.table({"key": ["b", "c", "d"], "value": [b"3", b"4", b"5"]})
        assert (await writer.upsert(table["key"], table["value"], expiry=2**31)).faults == {}
        assert (await writer.upsert(table["key"].chunk(0)[1:], table["value"].chunk(0)[1:])).faults == {}
        documents = await bucket.get_many(["b", "c", "d"])
        assert [each and each.value for each in documents] == [b"3", b"4", b"5"]


@in_loop
@pytest.mark.parametrize(
    ("keys", "values", "message"),
    [
        (["a", None], ["1", "2"], "1 nulls in keys, expected none"),
        (["a"], pa.array([None], pa.binary()), "1 nulls in values, expected none"),
        (["a"], [b"1", b"2"], "1 keys and 2 values, expected as many of each"),
        ([1], [b"1"], "keys: .*, expected binary values or texts"),
        (["a"], pa.array([1.5]), "values: .*, expected binary values or texts"),
    ],
)
async def test_columns_that_do_not_fit_are_refused(running, keys, values, message):
    async with BulkWriter(running.url()) as writer:
        with pytest.raises(UsageError, match=message):
            await writer.upsert(keys, values)
