"""Runs with compressed values: a consumer sees them inflated."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.constants import MAX_VALUE, Dialect
from penstock.wire.codec.flags import Datatype
from penstock.wire.columns.heads import gather_heads
from penstock.wire.columns.inflation import gather_plain_heads, inflate_run, inflate_value
from penstock.wire.columns.message_decoder import decode_messages
from penstock.wire.columns.run_decoder import decode_columns, list_changes
from penstock.wire.messages.dcp import Deletion, Mutation
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.upr_draft import DraftMutation
from penstock.wire.values.snappy import MAX_INFLATED, deflate
from tests.strategies import runs_in
from tests.wire.test_columns import context_of, run_of

pytestmark = pytest.mark.usefixtures("path")

SNAPPY, JSON, XATTR = Datatype.SNAPPY, Datatype.JSON, Datatype.XATTR


def mutation(value, datatype=0, seqno=1, **fields):
    return Mutation(vbucket=3, key=b"k", value=value, by_seqno=seqno, datatype=datatype, **fields)


def rows_of(run, **attributes):
    """Return a run's changes, the same both ways."""
    context = context_of()
    for name, described in attributes.items():
        setattr(context, name, described)
    columns = list_changes(decode_columns(run, gather_heads(run), context))
    assert decode_messages(run, context) == columns
    return columns


def compressed(message):
    """Return a change with its value compressed, and the extended meta data behind that as it was."""
    end = len(message.value) - getattr(message, "nmeta", 0)
    value = deflate(message.value[:end]) + message.value[end:]
    return replace(message, value=value, datatype=message.datatype | SNAPPY)


@pytest.mark.parametrize("dialect", [Dialect.DCP, Dialect.UPR, Dialect.TAP])
@given(data=st.data())
def test_compression_does_not_change_rows(dialect, data):
    plain = [replace(message, datatype=message.datatype & JSON) for message in data.draw(runs_in(dialect, max_size=40))]
    which = data.draw(st.lists(st.booleans(), min_size=len(plain), max_size=len(plain)))
    mixed = [
        compressed(message) if wanted and message.value else message
        for message, wanted in zip(plain, which, strict=True)
    ]
    source = run_of([message.encode() for message in mixed], before=b"..", dialect=dialect)
    found, heads = gather_plain_heads(source)
    assert found.buffer == inflate_run(source).buffer
    assert list_changes(decode_columns(found, heads, context_of())) == rows_of(found)
    assert rows_of(found) == rows_of(run_of([message.encode() for message in plain], dialect=dialect))


def test_run_without_compressed_values_is_unchanged():
    for many in (1, 100):
        run = run_of([mutation(b"v", JSON | XATTR, seqno).encode() for seqno in range(1, many + 1)])
        assert inflate_run(run) is run
        assert gather_plain_heads(run)[0] is run


def test_the_draft_has_no_datatypes():
    """Its kinds of message stand where the others have theirs, with the same bit."""
    run = run_of([DraftMutation(vbucket=1, key=b"k", value=b"v", by_seqno=1).encode()], dialect=Dialect.UPR_DRAFT)
    assert inflate_run(run) is run


@pytest.mark.parametrize("many", [1, 100])
def test_attributes_in_compressed_values_are_found(many):
    whole = pack_xattrs({"_a": b"1"}, b"body")
    packed = mutation(deflate(whole), SNAPPY | XATTR | JSON)
    run = run_of([replace(packed, by_seqno=seqno).encode() for seqno in range(1, many + 1)])
    for row in rows_of(inflate_run(run), xattrs=True):
        assert (row.value, row.xattrs, row.datatype) == (b"body", {"_a": b"1"}, JSON)


def test_missing_value_is_not_inflated():
    run = run_of([mutation(b"", SNAPPY | JSON).encode(), Deletion(key=b"k", by_seqno=2, datatype=SNAPPY).encode()])
    assert [(row.value, row.datatype) for row in rows_of(inflate_run(run))] == [(b"", JSON), (None, 0)]


BAD = [
    (b"\x05\x10abc", 0, "compressed value of 5 bytes: "),
    (deflate(bytes(MAX_VALUE + 1)), 0, f"{MAX_VALUE + 1} inflated, limit {MAX_VALUE}"),
    (deflate(bytes(MAX_INFLATED + 1)), XATTR, f"{MAX_INFLATED + 1} inflated, limit {MAX_INFLATED}"),
    (b"\x80\x80\x80\x0a" + bytes(50), 0, "cannot become"),
]


@pytest.mark.parametrize(("value", "datatype", "found"), BAD, ids=[row[2] for row in BAD])
def test_malformed_compression_names_document(value, datatype, found):
    run = run_of([mutation(b"v").encode(), mutation(value, SNAPPY | datatype, 2).encode()])
    with pytest.raises(RemoteProtocolError, match=found) as caught:
        inflate_run(run)
    assert str(caught.value).startswith("vbucket 3: DCP_MUTATION of key b'k': compressed value of ")
    assert caught.value.fatal


@given(st.binary(max_size=200), st.sampled_from([0, XATTR]))
def test_any_bytes_are_inflated_within_limit_or_refused(value, datatype):
    with contextlib.suppress(RemoteProtocolError):
        found, plain = inflate_value(value, SNAPPY | datatype, "k")
        assert len(found) <= MAX_INFLATED
        assert plain == datatype


def test_broken_frame_is_left_to_decoder():
    broken = replace(mutation(deflate(b"v"), SNAPPY), nmeta=500)
    assert getattr(broken, "value", None)
    run = run_of([broken.encode()])
    with pytest.raises(RemoteProtocolError, match="extended meta data of 500 bytes"):
        decode_messages(inflate_run(run), context_of())
