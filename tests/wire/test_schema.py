"""The columns of a change."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.columns.schema import CHANGE_SCHEMA, UNSIGNED64, Change, Event, signed64, unsigned64

CHANGE_COLUMNS = [
    *("vbucket", "vbuuid", "seqno", "rev_seqno", "cas", "event"),
    *("key", "value", "collection_id", "scope", "collection", "datatype"),
    *("flags", "expiry", "lock_time", "delete_time", "xattrs", "snapshot_start"),
    *("snapshot_end", "snapshot_flags", "history", "requested_seqno"),
]


def test_schema_has_columns_in_order() -> None:
    assert CHANGE_SCHEMA.names == CHANGE_COLUMNS
    assert list(Change._fields) == CHANGE_COLUMNS
    assert all(field.nullable for field in CHANGE_SCHEMA)


def test_unsigned_columns_are_int64() -> None:
    assert {CHANGE_SCHEMA.field(name).type for name in UNSIGNED64} == {pa.int64()}


SIGNED = [(0, 0), (1, 1), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1)]


@pytest.mark.parametrize(("unsigned", "signed"), SIGNED)
def test_same_bits(unsigned: int, signed: int) -> None:
    assert signed64(unsigned) == signed
    assert unsigned64(signed) == unsigned


@given(st.integers(0, 2**64 - 1))
def test_signed64_round_trips(number: int) -> None:
    assert unsigned64(signed64(number)) == number
    assert -(2**63) <= signed64(number) < 2**63


def test_event_equals_its_text() -> None:
    assert [str(event) for event in Event] == [
        *("mutation", "deletion", "expiration", "rollback", "flush"),
        *("begin_collection", "end_collection", "modify_collection", "create_scope", "drop_scope"),
    ]
