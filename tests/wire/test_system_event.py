"""The contents of system events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.wire.codec.constants import SystemEventKind
from penstock.wire.codec.frame import cut_frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.messages.dcp import SystemEvent
from penstock.wire.messages.system_event import (
    FLATBUFFERS,
    CreatedCollection,
    CreatedScope,
    DroppedCollection,
    DroppedScope,
    PackedEvent,
    Subject,
    pack_system_event,
    unpack_system_event,
)
from tests.strategies import unsigned

BEGIN, END, CREATE, DROP, MODIFY = SystemEventKind

FIXED: list[tuple[str, int, int, Subject, bytes, str]] = [
    ("collection begins", BEGIN, 0, CreatedCollection(5, 8, 9, "beer"), b"beer", "0000000000000005 00000008 00000009"),
    (
        "collection with a time to live begins",
        BEGIN,
        1,
        CreatedCollection(5, 8, 9, "beer", max_ttl=60),
        b"beer",
        "0000000000000005 00000008 00000009 0000003c",
    ),
    ("collection ends", END, 0, DroppedCollection(5, 8, 9), b"", "0000000000000005 00000008 00000009"),
    ("scope begins", CREATE, 0, CreatedScope(5, 8, "brewery"), b"brewery", "0000000000000005 00000008"),
    ("scope ends", DROP, 0, DroppedScope(5, 8), b"", "0000000000000005 00000008"),
]


@pytest.mark.parametrize(
    ("case", "event", "version", "subject", "key", "hexadecimal"), FIXED, ids=[r[0] for r in FIXED]
)
def test_fixed_fields(case: str, event: int, version: int, subject: Subject, key: bytes, hexadecimal: str) -> None:
    value = bytes.fromhex(hexadecimal)
    assert unpack_system_event(event, version, key, value) == subject
    assert pack_system_event(event, subject, as_table=False) == PackedEvent(version, key, value)


# Written by hand, all little-endian: first the offset of the table. The vtable has its size, the table's size, and the
# offset of each slot (0: missing). The table has the offset back to the vtable, then the fields. A text is its length,
# the letters, a NUL.
TABLES: list[tuple[str, int, Subject, bytes, str]] = [
    (
        "scope ends",
        DROP,
        DroppedScope(5, 8, system=True),
        b"",
        "10000000 0a00 1800 1000 0800 0c00 0000 0c000000 00000000 08000000 01000000 0500000000000000",
    ),
    (
        "scope ends, defaults left out",
        DROP,
        DroppedScope(5, 0),
        b"",
        "0c000000 0600 0c00 0400 0000 08000000 0500000000000000",
    ),
    (
        "scope begins",
        CREATE,
        CreatedScope(5, 8, "ale"),
        b"ale",
        "10000000 0a00 1800 1000 0800 0c00 0000 0c000000 00000000 08000000 0c000000 050000000000000003000000 616c65 00",
    ),
    (
        "collection begins, without a time to live",
        BEGIN,
        CreatedCollection(0, 8, 9, "", history=True),
        b"",
        "18000000 1200 1000 0000 0400 0800 0000 0000 0000 0c00 0000 14000000 08000000 09000000 01000000",
    ),
]


@pytest.mark.parametrize(("case", "event", "subject", "key", "hexadecimal"), TABLES, ids=[row[0] for row in TABLES])
def test_tables(case: str, event: int, subject: Subject, key: bytes, hexadecimal: str) -> None:
    assert unpack_system_event(event, FLATBUFFERS, key, bytes.fromhex(hexadecimal)) == subject


U32, U64 = unsigned("I"), unsigned("Q")
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
COLLECTIONS = st.builds(
    CreatedCollection, U64, U32, U32, NAMES, st.none() | U32, st.booleans(), U64, st.booleans(), U64
)
SUBJECTS: dict[int, st.SearchStrategy[Subject]] = {
    BEGIN: COLLECTIONS,
    END: st.builds(DroppedCollection, U64, U32, U32, st.booleans()),
    CREATE: st.builds(CreatedScope, U64, U32, NAMES),
    DROP: st.builds(DroppedScope, U64, U32, st.booleans()),
    MODIFY: COLLECTIONS,
}
EVENTS = st.sampled_from(list(SUBJECTS)).flatmap(lambda event: st.tuples(st.just(event), SUBJECTS[event]))


@given(EVENTS)
def test_tables_round_trip(drawn: tuple[int, Subject]) -> None:
    event, subject = drawn
    packed = pack_system_event(event, subject, as_table=True)
    assert packed.key == getattr(subject, "name", "").encode()
    message = SystemEvent(by_seqno=1, event=event, **packed._asdict())
    back = decode_frame(cut_frame(memoryview(message.encode()), 0))
    assert isinstance(back, SystemEvent)
    assert unpack_system_event(back.event, back.version, back.key, back.value) == subject


@given(EVENTS.filter(lambda drawn: drawn[0] != MODIFY))
def test_fixed_fields_round_trip(drawn: tuple[int, Subject]) -> None:
    event, subject = drawn
    version, key, value = pack_system_event(event, subject, as_table=False)
    back = unpack_system_event(event, version, key, value)
    found = back._asdict()
    kept = {"manifest_uid", "scope_id", "collection_id", "name", "max_ttl"} & found.keys()
    assert {name: found[name] for name in kept} == {name: subject._asdict()[name] for name in kept}


@given(
    st.sampled_from(list(SUBJECTS)) | U32,
    st.integers(0, 3) | unsigned("B"),
    st.binary(max_size=20),
    st.binary(max_size=100) | EVENTS.map(lambda drawn: pack_system_event(*drawn, as_table=True).value),
    st.lists(st.tuples(st.integers(0, 200), unsigned("B")), max_size=4),
)
def test_any_bytes_are_read_or_refused(
    event: int, version: int, key: bytes, value: bytes, changes: list[tuple[int, int]]
) -> None:
    changed = bytearray(value)
    for at, byte in changes:
        if at < len(changed):
            changed[at] = byte
    error: RemoteProtocolError | None = None
    try:
        subject = unpack_system_event(event, version, key, bytes(changed))
    except RemoteProtocolError as raised:
        error = raised
    if error is not None:
        assert not error.fatal
        return
    assert len(getattr(subject, "name", "")) <= len(changed) + len(key)
    assert pack_system_event(event, subject, as_table=True).version == FLATBUFFERS


REFUSED = [
    ("an event that is not known", 2, 0, b"", bytes(16), "event 2: version 0 is not known"),
    ("a version that is not known", BEGIN, 3, b"", bytes(16), "event 0: version 3 is not known"),
    ("a change in fixed fields", MODIFY, 0, b"", bytes(16), "event 5: version 0 is not known"),
    ("fixed fields cut short", BEGIN, 1, b"n", bytes(16), "value of 16 bytes, expected 20 in version 1"),
    ("a name that is no text", CREATE, 0, b"\xff", bytes(12), "is not UTF-8"),
    ("no table", DROP, FLATBUFFERS, b"", b"", "value of 0 bytes is not the table of a DroppedScope"),
    ("a table that is not there", DROP, FLATBUFFERS, b"", b"\xff" * 8, "value of 8 bytes is not the table"),
]


@pytest.mark.parametrize(("case", "event", "version", "key", "value", "error"), REFUSED, ids=[r[0] for r in REFUSED])
def test_malformed_event_is_refused(case: str, event: int, version: int, key: bytes, value: bytes, error: str) -> None:
    with pytest.raises(RemoteProtocolError, match=error) as caught:
        unpack_system_event(event, version, key, value)
    assert not caught.value.fatal


INVALID = [
    ("a scope of a collection's event", BEGIN, CreatedScope(1, 2, "n"), True, "system event 0 about a CreatedScope"),
    ("an event that is not known", 2, CreatedScope(1, 2, "n"), True, "system event 2 about a CreatedScope"),
    ("a change without a table", MODIFY, CreatedCollection(1, 2, 3, "n"), False, "exists only as a table"),
    ("a number out of its range", DROP, DroppedScope(-1, 2), False, "system event 4"),
    ("a number out of its range, in a table", DROP, DroppedScope(1, 2**32), True, "system event 4"),
]


@pytest.mark.parametrize(("case", "event", "subject", "as_table", "error"), INVALID)
def test_invalid_event_is_not_packed(case: str, event: int, subject: Subject, as_table: bool, error: str) -> None:
    with pytest.raises(LocalProtocolError, match=error):
        pack_system_event(event, subject, as_table=as_table)
