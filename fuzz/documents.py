"""One try against the parser of typed documents: the extension module and Python must give the same.

The first byte of a try chooses rules, and each line behind it is a value. Values change token by token.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa

from penstock.spark.values.typed_documents import ColumnRule, DocumentParser, ParsedDocuments
from penstock.wire.codec import native
from penstock.wire.codec.constants import Dialect

answered: Counter[str] = Counter()
"""How often values had each outcome: an object of which all fits, no object, or the reason of a misfit."""

_TIMESTAMP, _DATE = pa.timestamp("us", "UTC"), pa.date32()
_INNER = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.float64())), ("c", pa.map_(pa.string(), pa.string()))])
_RULES = (
    [ColumnRule("a", pa.int64()), ColumnRule("b", pa.string()), ColumnRule("c", pa.float64())],
    [ColumnRule("a", pa.int8()), ColumnRule("b", pa.decimal128(38, 9)), ColumnRule("c", pa.float32())],
    [ColumnRule("a", _INNER), ColumnRule("b", pa.list_(_INNER)), ColumnRule("c", pa.map_(pa.string(), _INNER))],
    [ColumnRule("a", _TIMESTAMP), ColumnRule("b", _DATE), ColumnRule("c", pa.binary())],
    [ColumnRule("a", _TIMESTAMP, form="unix_s"), ColumnRule("b", _DATE, form="unix_ms"), ColumnRule("c", pa.bool_())],
    [
        ColumnRule("x", pa.int64(), ("a", "a")),
        ColumnRule("y", pa.string(), ("a", "b", "c")),
        ColumnRule("z", _DATE, ("c",)),
    ],
    [
        ColumnRule("a", pa.string(), form="json"),
        ColumnRule("b", pa.map_(pa.string(), pa.map_(pa.string(), pa.int64()))),
    ],
)
_PARSERS = [DocumentParser(rules) for rules in _RULES]
_VALUES = (
    b'{"a":1,"b":"x","c":0.5}',
    b'{"a":1,"a":"2","d":[1, 2],"c":1e400}',
    b'{"a":{"a":1,"b":[1.5,null],"c":{"k":"v","k":1}},"b":[{"a":1,"a":2}],"c":{"b":{"a":3}}}',
    b'{"a":"2026-11-28T09:30:00.25+01:00","b":"2026-11-28","c":"aGk="}',
    b'{"a":"2026-11-28 09:30:00,123456700z","b":"2026-11-28T00:00","c":"20261128T093000.000001Z"}',
    b'{"a":"Sat, 28 Nov 2026 09:30:00 GMT","b":"20261128","c":"2026-11-28t09:30z"}',
    b'{"a":{"$date":{"$numberLong":"1764322200000"}},"b":1764288000000,"c":true}',
    b'{"a":1764322200.25,"b":0,"c":123456789012345678901234567890}',
    b'{"\\u0061":"\\ud83d\\ude00","\\ud800":1,"c":"2026-11-2\\u0038"}',
    b'[{"a":1}]',
)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|[a-z]+|.', re.DOTALL)
_TOKENS = (
    *(
        b'"a"',
        b'"b"',
        b'"c"',
        b'"\\u0061"',
        b'"$date"',
        b'"$numberLong"',
        b'"\\udc00"',
        b'"\xff"',
        b'""',
        b"null",
        b"true",
    ),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b" ",
        b"\n",
        b"\0",
        b"-0",
        b"1e22",
        b"5e-324",
        b"0.30000000000000004",
        b"1e-400",
    ),
    *(
        b"9223372036854775808",
        b"9007199254740993",
        b"2.2250738585072011e-308",
        b'"1.5"',
        b'"20261128T0930Z"',
        b'"YQ=="',
    ),
    *(b'{"a":1}', b'{"a":{"a":1},"a":2}', b"[1,2]", b"false", b"253402300800", b"1e99999999999999999999"),
)


def list_tries(dialect: Dialect | None) -> Iterator[bytes]:
    """Yield the tries to begin with.

    Args:
        dialect: not used: documents are no dialect.
    """
    for number in range(len(_RULES)):
        yield bytes([number]) + b"\n".join(_VALUES)


def mutate(data: bytes, longest: int, chance: random.Random) -> bytes:
    """Return a try with some tokens removed, repeated, exchanged or changed.

    Args:
        data: the try.
        longest: the most bytes of the result.
        chance: the choices.
    """
    tokens = _TOKEN.findall(data[1:])
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(tokens) + 1)
        end = min(len(tokens), at + chance.choice((0, 1, 1, 2, 8)))
        start = chance.randrange(len(tokens) + 1)
        moved = tokens[start : start + chance.choice((1, 3, 9))]
        tokens[at:end] = chance.choice(
            ([], [chance.choice(_TOKENS)], [chance.choice(_TOKENS)], moved, tokens[at:end] * 2)
        )
    rules = chance.randrange(len(_RULES)) if chance.random() < 0.3 or not data else data[0]
    return (bytes([rules]) + b"".join(tokens))[:longest]


def check(data: bytes, dialect: Dialect | None) -> None:
    """Parse the values of a try in both ways.

    Args:
        data: the try.
        dialect: not used: documents are no dialect.
    """
    if not data:
        return
    values = pa.array(data[1:].split(b"\n"), pa.binary())
    parser = _PARSERS[data[0] % len(_PARSERS)]
    found = parser.parse(values)
    extension, native.extension = native.extension, None
    try:
        expected = parser.parse(values)
    finally:
        native.extension = extension
    for each in (found.columns, found.rest, found.objects):
        each.validate(full=True)
    assert found.columns.equals(expected.columns), f"{found.columns} and {expected.columns}"
    assert found == expected, f"{found} and {expected}"
    _count_outcomes(found)


def _count_outcomes(found: ParsedDocuments) -> None:
    answered["fits"] += len(found.rest) if not found.misfits else 0
    for _, reason in found.misfits:
        answered[reason] += 1
