import pytest

from penstock.errors import DeltaBadValue
from penstock.store.documents.derived_values import add_to_number, extend_value
from penstock.wire.codec.flags import Datatype
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.values.snappy import deflate

LAST = 2**64 - 1
JSON, XATTR, SNAPPY = Datatype.JSON, Datatype.XATTR, Datatype.SNAPPY

COUNTED = [
    (b"0", 1, 1),
    (b"007", 3, 10),
    (b"%d" % LAST, 0, LAST),
    (b"%d" % LAST, 1, 0),
    (b"%d" % LAST, LAST, LAST - 1),
    (b"5", -5, 0),
    (b"5", -6, 0),
    (b"5", -LAST, 0),
    (b"0" * 19 + b"9", 1, 10),
]


@pytest.mark.parametrize(("value", "delta", "number"), COUNTED)
def test_delta_is_added_to_a_number(value: bytes, delta: int, number: int) -> None:
    assert add_to_number(value, 0, delta) == (number, b"%d" % number)


@pytest.mark.parametrize(
    "value", [b"", b" ", b"-1", b"+", b"+-1", b"1.0", b"0x1", b"one", "٣".encode(), b"%d" % 2**64, b"1" * 5000]
)
def test_other_values_are_not_numbers(value: bytes) -> None:
    with pytest.raises(DeltaBadValue, match=f"of {len(value)} bytes: expected a decimal number below"):
        add_to_number(value, 0, 1)


def test_extended_attributes_are_not_part_of_the_number() -> None:
    assert add_to_number(pack_xattrs({"a": b"1"}, b"9"), XATTR, 1) == (10, pack_xattrs({"a": b"1"}, b"10"))
    with pytest.raises(DeltaBadValue):
        add_to_number(pack_xattrs({"a": b"1"}, b"9"), 0, 1)


EXTENDED = [
    # value and its datatype, the added bytes, the value after an append and after a prepend, its new datatype
    (b"old", 0, b"new", b"oldnew", b"newold", 0),
    (b"", 0, b"new", b"new", b"new", 0),
    (b"[1]", JSON, b",", b"[1],", b",[1]", 0),
    (b"[1]", JSON, b"", b"[1]", b"[1]", JSON),
    (
        *(pack_xattrs({"a": b"1"}, b"old"), XATTR | JSON, b"new"),
        *(pack_xattrs({"a": b"1"}, b"oldnew"), pack_xattrs({"a": b"1"}, b"newold"), XATTR),
    ),
]


@pytest.mark.parametrize(("value", "datatype", "more", "behind", "in_front", "after"), EXTENDED)
def test_bytes_are_appended_and_prepended_to_a_value(
    value: bytes, datatype: int, more: bytes, behind: bytes, in_front: bytes, after: int
) -> None:
    assert extend_value(value, datatype, more, in_front=False) == (behind, after)
    assert extend_value(value, datatype, more, in_front=True) == (in_front, after)


def test_changed_compressed_value_is_inflated() -> None:
    assert extend_value(deflate(b"old"), SNAPPY | JSON, b"new", in_front=False) == (b"oldnew", 0)
    assert add_to_number(deflate(b"41"), SNAPPY, 1) == (42, b"42")
