"""The forms of times in JSON: each has one instant, or does not fit, in all readers of typed values."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.dependents.json_paths import extract_values
from penstock.spark.dependents.value_types import VALUE_TYPES
from penstock.spark.tables.json_columns import parse
from penstock.spark.values.json_times import DATE, TIMESTAMP
from penstock.spark.values.typed_documents import ColumnRule, DocumentParser
from penstock.wire.codec import native

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
EXACTLY = NOON + timedelta(microseconds=123456)
INEXACT, TYPE, TEXT = "not held exactly", "other type", "text of another form"

COMMON_FORMS: dict[str, Any] = {
    # RFC 3339 and the extended format of ISO 8601
    '"2026-11-28T12:00:00Z"': NOON,
    '"2026-11-28t12:00:00z"': NOON,
    '"2026-11-28 12:00:00Z"': NOON,
    '"2026-11-28T12:00:00"': NOON,
    '"2026-11-28 12:00:00"': NOON,
    '"2026-11-28T12:00"': NOON,
    '"2026-11-28T12:00Z"': NOON,
    '"2026-11-28"': NOON.replace(hour=0),
    '"2026-11-28T12:00:00.123Z"': NOON + timedelta(milliseconds=123),
    '"2026-11-28T12:00:00.123456Z"': EXACTLY,
    '"2026-11-28T12:00:00.123456000Z"': EXACTLY,
    '"2026-11-28T12:00:00,123456Z"': EXACTLY,
    '"2026-11-28 12:00:00,123"': NOON + timedelta(milliseconds=123),
    '"2026-11-28T12:00:00.1Z"': NOON + timedelta(milliseconds=100),
    # offsets
    '"2026-11-28T13:00:00+01:00"': NOON,
    '"2026-11-28T13:00:00+0100"': NOON,
    '"2026-11-28T13:00:00+01"': NOON,
    '"2026-11-28T08:30:00-03:30"': NOON,
    '"2026-11-28T12:00:00+00:00"': NOON,
    '"2026-11-28T12:00:00-00:00"': NOON,
    '"2026-11-29T02:00:00.123456+14:00"': EXACTLY,
    '"2026-11-28 13:00+01:00"': NOON,
    # the basic format of ISO 8601
    '"20261128T120000Z"': NOON,
    '"20261128t120000z"': NOON,
    '"20261128T120000"': NOON,
    '"20261128T1200Z"': NOON,
    '"20261128T120000.123456Z"': EXACTLY,
    '"20261128T120000,123456Z"': EXACTLY,
    '"20261128T130000+0100"': NOON,
    '"20261128"': NOON.replace(hour=0),
    # RFC 1123
    '"Sat, 28 Nov 2026 12:00:00 GMT"': NOON,
    '"Sat, 28 Nov 2026 13:00:00 +0100"': NOON,
    '"28 Nov 2026 12:00:00 GMT"': NOON,
    '"Thu, 5 Nov 2026 12:00:00 UTC"': NOON.replace(day=5),
    '"SAT, 28 NOV 2026 12:00 gmt"': NOON,
    # extended JSON of MongoDB
    '{"$date":"2026-11-28T12:00:00.123456Z"}': EXACTLY,
    '{"$date":"2026-11-28T13:00:00+0100"}': NOON,
    '{"$date":1795867200000}': NOON,
    '{"$date":-1}': datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC),
    '{ "$date" : { "$numberLong" : "1795867200000" } }': NOON,
    # escapes are a part of JSON, not of the form
    '"2026-11-28T12\\u003a00:00Z"': NOON,
}
"""Forms that programs and databases write, as JSON -> the instant."""

OTHER_FORMS: dict[str, str] = {
    # finer than a TIMESTAMP
    '"2026-11-28T12:00:00.1234567Z"': INEXACT,
    '"2026-11-28T12:00:00.123456001Z"': INEXACT,
    '"2026-11-28T12:00:00,000000001"': INEXACT,
    '"20261128T120000.0000001Z"': INEXACT,
    '{"$date":"2026-11-28T12:00:00.1234567Z"}': INEXACT,
    '{"$date":1795867200000.0001}': INEXACT,
    '{"$date":253402300800000}': INEXACT,
    '{"$date":{"$numberLong":"0.00001"}}': INEXACT,
    # no such time
    '"2026-02-29T12:00:00Z"': TEXT,
    '"2026-02-29T12:00:00.1234567Z"': TEXT,
    '"2026-11-28T24:00:00Z"': TEXT,
    '"2026-11-28T12:60:00Z"': TEXT,
    '"2026-11-28T23:59:60Z"': TEXT,
    '"2026-11-28T12:00:00+18:01"': TEXT,
    '"Sun, 28 Nov 2026 12:00:00 GMT"': TEXT,
    '"10000-01-01T00:00:00Z"': TEXT,
    # ambiguous, or unfinished
    '"11/28/2026"': TEXT,
    '"28.11.2026"': TEXT,
    '"2026-11"': TEXT,
    '"2026-11-28T12"': TEXT,
    '"2026-11-28T12:00:00."': TEXT,
    '"2026-11-28T12:00:00.,1"': TEXT,
    '"2026-11-28T12:00,5"': TEXT,
    '"12:00:00"': TEXT,
    '" 2026-11-28"': TEXT,
    '"2026-11-28T12:00:00 Europe/Berlin"': TEXT,
    '"Sat, 28 Nov 2026 12:00:00 EST"': TEXT,
    '"1795867200"': TEXT,
    '""': TEXT,
    # numbers have a unit only by declaration
    "1795867200": TYPE,
    "1795867200.5": TYPE,
    "true": TYPE,
    "[]": TYPE,
    '{"date":1795867200000}': TYPE,
    '{"$date":"soon"}': TEXT,
}
"""Other values, as JSON -> why they are in `_rest`."""

NUMBERS: dict[str, list[tuple[str, Any]]] = {
    "unix_s": [
        ("1795867200", NOON),
        ("1795867200.123456", EXACTLY),
        ("1795867200.1234560", EXACTLY),
        ("1.7958672e9", NOON),
        ('"1795867200"', NOON),
        ("-1", datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("0", datetime(1970, 1, 1, tzinfo=UTC)),
        ("1795867200.1234561", INEXACT),
        ("253402300800", INEXACT),
    ],
    "unix_ms": [
        ("1795867200000", NOON),
        ("1795867200123.456", EXACTLY),
        ("1795867200123.4561", INEXACT),
        ('"2026-11-28T12:00:00Z"', NOON),
    ],
    "unix_us": [("1795867200123456", EXACTLY), ("1795867200123456.5", INEXACT), ("1e400", INEXACT)],
}
"""The form of a rule -> numbers with their instant, or the reason."""

Held = tuple[Any, str | None]
"""The value of a column, and the reason why there is none."""


def hold(written: str, of: pa.DataType, form: str | None = None) -> Held:
    """Return the value of a field x with this JSON in a column."""
    document = f'{{"x":{written}}}'
    found = DocumentParser([ColumnRule("x", of, form=form)]).parse(pa.array([document.encode()]))
    reason = next((reason for path, reason in found.misfits if path == "x"), None)
    assert found.rest.to_pylist() == [document if reason else None]
    return found.columns["x"][0].as_py(), reason


def hold_in_view(written: str, of: pa.DataType) -> Any:
    columns, rest = parse(pa.array([f'{{"x":{written}}}'.encode()]), pa.schema([("x", of)]))
    found = columns.field("x")[0].as_py()
    assert (found is None) == rest[0].is_valid
    return found


def hold_in_index(written: str, kind: str, crowd: int = 0) -> Any:
    """Return the value of an index, alone or beside values that are read as a whole batch."""
    plain = [b'{"x":"2026-11-28"}'] * crowd
    values = pa.array([*plain, f'{{"x":{written}}}'.encode(), *plain])
    found = extract_values(values, ("x",), VALUE_TYPES[kind])
    return found.values[found.rows.tolist().index(crowd)].as_py()


@pytest.fixture(params=[True, False], ids=["native", "python"])
def either_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(native, "extension", None)


def collect_wrong(read: Callable[[str], Any], expected: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(written, found) for written, wanted in expected.items() if (found := read(written)) != wanted]


@pytest.mark.usefixtures("either_parser")
def test_common_forms_have_their_instant() -> None:
    wanted = {written: (instant, None) for written, instant in COMMON_FORMS.items()}
    assert collect_wrong(lambda written: hold(written, TIMESTAMP), wanted) == []


@pytest.mark.usefixtures("either_parser")
def test_other_values_stay_in_the_rest() -> None:
    wanted = {written: (None, reason) for written, reason in OTHER_FORMS.items()}
    assert collect_wrong(lambda written: hold(written, TIMESTAMP), wanted) == []


@pytest.mark.usefixtures("either_parser")
@pytest.mark.parametrize("form", NUMBERS)
def test_numbers_are_times_by_declaration(form: str) -> None:
    for written, wanted in NUMBERS[form]:
        expected = (None, wanted) if isinstance(wanted, str) else (wanted, None)
        assert hold(written, TIMESTAMP, form) == expected, written


@pytest.mark.usefixtures("either_parser")
def test_dates_are_dates_alone() -> None:
    for written, wanted in {
        '"2026-11-28"': date(2026, 11, 28),
        '"20261128"': date(2026, 11, 28),
        '"2026-11-28T00:00:00Z"': None,
        '"2026-11-28T00:00:00.0000001Z"': None,
        '"Sat, 28 Nov 2026 00:00:00 GMT"': None,
        '"2026-02-29"': None,
    }.items():
        assert hold(written, DATE) == (wanted, None if wanted else TEXT), written
        assert hold_in_index(written, "date") == wanted, written


@pytest.mark.parametrize("crowd", [0, 100])
def test_views_and_indexes_read_the_same_times(crowd: int) -> None:
    wanted = {**COMMON_FORMS, **dict.fromkeys(OTHER_FORMS)}
    assert collect_wrong(lambda written: hold_in_view(written, TIMESTAMP), wanted) == []
    wanted.pop("[]")  # has no value for an index
    assert collect_wrong(lambda written: hold_in_index(written, "timestamp", crowd), wanted) == []


FRACTIONS = st.text("0123456789", max_size=12)


@given(st.datetimes(timezones=st.just(UTC)), FRACTIONS, st.sampled_from(".,"), st.sampled_from(["Z", "z", "", "+00"]))
def test_fractions_are_exact_or_in_the_rest(moment: datetime, digits: str, mark: str, offset: str) -> None:
    fraction = f"{mark}{digits}" if digits else ""
    seconds = moment.replace(microsecond=0, tzinfo=None).isoformat()
    written = f'"{seconds}{fraction}{offset}"'
    if digits[6:].strip("0"):
        expected: Held = (None, INEXACT)
    else:
        expected = (moment.replace(microsecond=int(digits[:6].ljust(6, "0"))), None)
    assert hold(written, TIMESTAMP) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "extension", None)
        assert hold(written, TIMESTAMP) == expected
