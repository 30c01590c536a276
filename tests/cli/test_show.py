"""Changes and bytes as text and as JSON."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.base.show import format_json_line, format_one_line
from penstock.client.dumps.json_objects import make_json_object
from penstock.wire.columns.schema import Change, Event


@given(st.binary(max_size=60), st.integers(2, 30))
def test_one_line_fits_and_is_printable(content, width):
    shown = format_one_line(content, width)
    assert len(shown) <= width
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"Bi\xc3\xa8re", "Bière"),
        (b"0123456789", "0123456789"),
        (b"0123456789a", "012345678…"),
        (b"a\nb", "a\\nb"),
        (b"\x1b[2J", "\\x1b[2J"),
        (b"\xff\xfe", "\\xff\\xfe"),
        ("日本日本日本日本日本日".encode(), "日本日本日本日本日…"),
        (None, ""),
    ],
)
def test_bytes_are_shown_as_printable_text(content, shown):
    assert format_one_line(content, 10) == shown


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_json_keeps_all_bytes(key, value):
    shown = json.loads(format_json_line(make_json_object(Change(1, 2, 3, key=key, value=value)._asdict())))
    for name, content in (("key", key), ("value", value)):
        text, code = shown.get(name), shown.get(f"{name}_base64")
        assert (base64.b64decode(code) if text is None else text.encode()) == content


def test_object_of_a_change_has_no_nulls():
    cas = 2**64 - 1
    change = Change(7, 2**63, 2**40, 1, cas, Event.MUTATION, b"k", b"[1]", xattrs={"_sync": b"{}", "raw": b"\xff"})
    assert make_json_object(change._asdict()) == {
        "vbucket": 7,
        "vbuuid": str(2**63),
        "seqno": 2**40,
        "rev_seqno": 1,
        "cas": str(cas),
        "event": "mutation",
        "key": "k",
        "value": "[1]",
        "xattrs": {"_sync": "{}", "raw_base64": "/w=="},
        "history": 0,
    }


def test_signed_numbers_of_a_table_are_shown_unsigned():
    assert make_json_object({"cas": -1, "vbuuid": -(2**63), "xattrs": [("a", b"1")]}) == {
        "cas": str(2**64 - 1),
        "vbuuid": str(2**63),
        "xattrs": {"a": "1"},
    }
