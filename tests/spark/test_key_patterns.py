"""Key patterns: the typed columns of keys, against a model with Python's regular expressions."""

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.spark.tables.key_pattern import KeyPart, KeyPattern

ORDERS = KeyPattern.parse("order::{customer BIGINT}::{number INT}")


def split(pattern: KeyPattern, keys: list[str | None]) -> tuple[list[tuple[object, ...]], int]:
    """Return the values of each key, and the number of misfits."""
    found = pattern.split_keys(pa.array(keys, pa.string()))
    assert [column.type for column in found.columns] == [part.type for part in pattern.parts]
    return [*zip(*(column.to_pylist() for column in found.columns), strict=True)], found.misfits


def test_parts_of_a_pattern():
    assert ORDERS.literals == ("order::", "::", "")
    assert ORDERS.parts == (KeyPart("customer", pa.int64()), KeyPart("number", pa.int32()))
    assert not ORDERS.is_whole


def test_the_whole_key():
    pattern = KeyPattern.parse("order_id STRING")
    assert pattern.is_whole
    assert split(pattern, ["a", "", None]) == ([("a",), ("",), (None,)], 1)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("order::1::2", (1, 2)),
        ("order::9223372036854775807::-2147483648", (2**63 - 1, -(2**31))),
        ("order::9223372036854775808::1", None),
        ("order::1::2147483648", None),
        ("order::007::1", None),
        ("order::-0::1", None),
        ("order::1::2\n", None),
        ("order::1", None),
        ("an order::1::2", None),
        ("order::\u0661::2", None),
        (None, None),
    ],
)
def test_keys_that_fit_and_others(key, values):
    assert split(ORDERS, [key]) == ([values or (None, None)], 0 if values else 1)


def test_no_keys():
    assert split(ORDERS, []) == ([], 0)


def test_literals_are_no_expressions():
    assert split(KeyPattern.parse("a.*+(é)\n{b STRING}|"), ["a.*+(é)\nx|", "abb(é)\nx|"]) == ([("x",), (None,)], 1)


def test_a_part_ends_at_the_first_text_behind_it():
    assert split(KeyPattern.parse("{a STRING}:{b STRING}"), ["x\n:y:z", ":y", "::"]) == (
        [("x\n", "y:z"), (None, None), (None, None)],
        2,
    )


TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
NAMES = ("a", "b", "c")
TYPES = {"STRING": r"(.+?)", "BIGINT": r"(0|-?[1-9][0-9]*)", "TINYINT": r"(0|-?[1-9][0-9]*)"}


@given(st.data())
def test_keys_as_in_python(data):
    between = st.text(st.sampled_from(":.x/é"), min_size=1, max_size=2)
    kinds = data.draw(st.lists(st.sampled_from([*TYPES]), min_size=1, max_size=3))
    literals = ["#", *(data.draw(between) for _ in kinds)]
    text = literals[0] + "".join(f"{{{n} {k}}}{b}" for n, k, b in zip(NAMES, kinds, literals[1:], strict=False))
    values = st.one_of(TEXTS, st.integers(-(2**65), 2**65).map(str), st.integers(-200, 200).map(str))
    made = st.tuples(*(values for _ in kinds)).map(
        lambda each: literals[0] + "".join(v + b for v, b in zip(each, literals[1:], strict=True))
    )
    keys = data.draw(st.lists(made | TEXTS, max_size=8))
    expression = re.compile(
        re.escape(literals[0]) + "".join(TYPES[k] + re.escape(b) for k, b in zip(kinds, literals[1:], strict=True)),
        re.DOTALL,
    )

    def expect(key: str) -> tuple[object, ...] | None:
        match = expression.fullmatch(key)
        if match is None:
            return None
        found = [each if kind == "STRING" else int(each) for kind, each in zip(kinds, match.groups(), strict=True)]
        bits = {"BIGINT": 63, "TINYINT": 7, "STRING": 0}
        fits = all(k == "STRING" or -(2 ** bits[k]) <= int(v) < 2 ** bits[k] for k, v in zip(kinds, found, strict=True))
        return tuple(found) if fits else None

    expected = [expect(key) for key in keys]
    rows, misfits = split(KeyPattern.parse(text), [*keys])
    assert rows == [each or (None,) * len(kinds) for each in expected]
    assert misfits == expected.count(None)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "expected such as"),
        ("order_id", "'order_id' is no column with its type"),
        ("order::{a}", "'a' is no column with its type"),
        ("order::{a STRING, b STRING}", "is no column with its type"),
        ("order::{a STRING", "expected such as"),
        ("order}", "expected such as"),
        ("order::{{a STRING}}", "expected such as"),
        ("{a STRING}{b STRING}", "some text between two parts"),
        ("{a STRING}:{A BIGINT}", "each column once"),
        ("{a DOUBLE}", "a is DOUBLE; expected one of STRING, BIGINT, INT, SMALLINT, TINYINT"),
    ],
)
def test_invalid_patterns(text, part):
    with pytest.raises(UsageError, match=re.escape(part)) as error:
        KeyPattern.parse(text)
    assert repr(text) in str(error.value)
