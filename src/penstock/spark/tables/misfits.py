"""Misfits: the parts of documents in `_rest`, counted by field and by the reason why no column has them.

Each file of a typed table has the counts of its own rows in its footer. So the counts of a table are exact, follow the
table through rollbacks and erasures, and cost no read of rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.names import escape_bytes, escape_text
from penstock.spark.tables.column_rules import add_rules, create_parser
from penstock.spark.values.column_tree import Reason, join_path
from penstock.spark.values.json_types import as_struct, format_type
from penstock.spark.values.typed_documents import (
    BINARY_BEGINNING,
    OTHER_NAMES,
    SAMPLE_ROWS,
    ColumnRule,
    Misfit,
    ParsedDocuments,
)
from penstock.wire.values.json_value import read_members

REST = "_rest"
"""The column of a typed table with the parts of documents that no other column has."""
NOTE = "penstock.rest"
"""The key of the counts in a file's footer."""
MOST_NAMES = 100
"""Unknown fields with a count of their own in one file. All others are counted together."""
MOST_CHARACTERS = 200
"""Characters of a field's path in a report."""
UNKNOWN = Reason.UNKNOWN.words


@dataclass(frozen=True, slots=True)
class RestCount:
    """A field with values in `_rest`, and the reason.

    Attributes:
        field: names with points between them, and [] for the elements of an array. Empty for whole documents, `*` for
            further unknown fields together.
        reason: the words of a Reason, such as "unknown field" or "other type".
        found: the JSON types of the first values: text, number, boolean, object, array, null, or "no object".
        expected: the type of the column, null for an unknown field and a whole document.
        values: number of values.
        keys: keys of some documents with such a value, with escapes for unprintable characters.
    """

    field: str
    reason: str
    found: str
    expected: str | None
    values: int
    keys: tuple[str, ...] = ()

    @property
    def is_conflict(self) -> bool:
        """Whether a column could not take the values, or a document is no JSON object. New fields are no conflict."""
        return self.reason != UNKNOWN

    def join(self, other: RestCount) -> RestCount:
        """Return the sum of two counts of the same field and reason."""
        found = dict.fromkeys((*self.found.split(", "), *other.found.split(", ")))
        keys = tuple(dict.fromkeys((*self.keys, *other.keys)))[:SAMPLE_ROWS]
        values = self.values + other.values
        return replace(self, found=", ".join(each for each in found if each), values=values, keys=keys)


@dataclass(frozen=True, slots=True)
class RestReport:
    """The rows of a table that have a `_rest`.

    Attributes:
        rows: number of these rows.
        examined: number of rows whose `_rest` was examined; fewer only if another program wrote files of the table.
        misfits: the misfits in these: conflicts before unknown fields, the most frequent first.
    """

    rows: int = 0
    examined: int = 0
    misfits: tuple[RestCount, ...] = ()

    @classmethod
    def join(cls, parts: Iterable[RestReport]) -> RestReport:
        """Return the report of several files as one."""
        found = list(parts)
        counts = sort_counts(each for part in found for each in part.misfits)
        return cls(sum(part.rows for part in found), sum(part.examined for part in found), counts)

    def shorten(self, most: int) -> RestReport:
        """Return the report without keys, with the first fields alone. The others are counted together by reason."""
        shown = [replace(each, keys=()) for each in self.misfits[:most]]
        others = [RestCount(OTHER_NAMES, each.reason, "", None, each.values) for each in self.misfits[most:]]
        return replace(self, misfits=sort_counts([*shown, *others]))

    def to_json(self) -> str:
        """Return the report as the footer of a file has it."""
        return json.dumps([self.rows, self.examined, [astuple(each) for each in self.misfits]])

    @classmethod
    def from_json(cls, text: bytes | str) -> RestReport:
        """Return the report that `to_json` has written."""
        rows, examined, counts = json.loads(text)
        return cls(rows, examined, tuple(map(_restore_count, counts)))


def _restore_count(found: tuple[str, str, str, str | None, int, list[str]]) -> RestCount:
    field, reason, types, expected, values, keys = found
    return RestCount(field, reason, types, expected, values, tuple(keys))


def sort_counts(counts: Iterable[RestCount]) -> tuple[RestCount, ...]:
    """Return counts with each field and reason once: conflicts before unknown fields, the most frequent first."""
    found: dict[tuple[str, str], RestCount] = {}
    for each in counts:
        place = (each.field, each.reason)
        found[place] = found[place].join(each) if place in found else each
    return tuple(sorted(found.values(), key=lambda each: (not each.is_conflict, -each.values, each.field, each.reason)))


class MisfitFinder:
    """Finds the parts of documents that columns cannot take.

    Args:
        fields: the fields of documents, without those of rules.
        rules: the columns of single fields.
    """

    def __init__(self, fields: pa.Schema, rules: Sequence[ColumnRule]) -> None:
        self._parser = create_parser(rules, fields)
        self._documents = as_struct(add_rules(fields, rules))
        self._types = _map_paths(self._documents)

    def parse(self, values: pa.BinaryArray) -> ParsedDocuments:
        """Return the columns and the misfits of documents."""
        return self._parser.parse(values)

    def count(self, values: pa.BinaryArray, found: Mapping[tuple[str, str], Misfit]) -> Iterator[RestCount]:
        """Yield a count for each field and reason; its keys are the numbers of the first rows as text.

        Args:
            values: the documents.
            found: their misfits.
        """
        sampled = {row for misfit in found.values() for row in misfit.rows}
        types = {row: [*_list_types(values[row].as_py(), self._documents)] for row in sampled}
        for (path, reason), misfit in found.items():
            yield RestCount(
                path if len(path) <= MOST_CHARACTERS else f"{path[: MOST_CHARACTERS - 1]}…",
                reason,
                self._name_found(path, reason, [types[row] for row in misfit.rows]),
                None if reason == UNKNOWN else self._types.get(path),
                misfit.count,
                tuple(map(str, misfit.rows)),
            )

    def _name_found(self, path: str, reason: str, documents: Iterable[Iterable[tuple[str, str]]]) -> str:
        if not path:
            return "no object" if reason == Reason.NO_OBJECT.words else "object"
        types = dict.fromkeys(kind for types in documents for place, kind in types if place == path)
        fitting = _JSON_NAMES.get((self._types.get(path) or "").partition("<")[0].partition("(")[0], "number")
        others = [kind for kind in types if kind not in (fitting, "null")]
        return ", ".join(others if others and reason == Reason.OTHER_TYPE.words else types)


class RestCounter:
    """Counts the misfits of the rows that go into one file.

    The texts of `_rest` are parsed again, by the rules of the table: in them nothing fits, except an earlier value of
    a repeated field.

    Args:
        finder: finds misfits by the columns of the table.
        keys: the columns with the key of a document, as text and as bytes.
    """

    def __init__(self, finder: MisfitFinder, keys: tuple[str, str]) -> None:
        self._finder = finder
        self._keys = keys
        self._report = RestReport()

    def add(self, rows: pa.Table) -> None:
        """Count the misfits of rows."""
        rows = rows.select([REST, *self._keys]).filter(pc.is_valid(rows[REST]))
        if rows.num_rows:
            self._report = RestReport.join([self._report, RestReport(rows.num_rows, rows.num_rows, self._count(rows))])

    def make_report(self) -> RestReport:
        """Return the counts so far."""
        misfits = self._report.misfits
        unknown = [each for each in misfits if not each.is_conflict]
        limited = [*misfits[: len(misfits) - len(unknown)], *unknown[:MOST_NAMES]]
        others = [replace(each, field=OTHER_NAMES, found="") for each in unknown[MOST_NAMES:]]
        return replace(self._report, misfits=sort_counts([*limited, *others]))

    def make_notes(self) -> dict[str, str]:
        """Return the counts as a note of the footer; none if all values fit."""
        return {NOTE: self.make_report().to_json()} if self._report.rows else {}

    def _count(self, rows: pa.Table) -> tuple[RestCount, ...]:
        rests = rows[REST].cast(pa.string()).combine_chunks()
        is_binary = pc.starts_with(rests, BINARY_BEGINNING)
        texts = pc.if_else(is_binary, "", rests).cast(pa.binary())  # the object in `_rest` is not the document
        parsed = self._finder.parse(texts)
        found = dict(parsed.misfits)
        fits = pc.and_(pc.fill_null(parsed.objects, False), parsed.rest.is_null())
        if fits.true_count:
            first = pc.indices_nonzero(fits)[:SAMPLE_ROWS].to_pylist()
            found["", Reason.REPEATED.words] = Misfit(fits.true_count, tuple(first))
        text, key = (rows[name] for name in self._keys)
        counts = self._finder.count(texts, found)
        return tuple(
            replace(each, keys=tuple(name_key(text[int(row)].as_py(), key[int(row)].as_py()) for row in each.keys))
            for each in counts
        )


_JSON_NAMES = {
    "STRING": "text", "BOOLEAN": "boolean", "STRUCT": "object", "ARRAY": "array", "TIMESTAMP": "text", "DATE": "text",
}  # fmt: skip
"""Column types that are no number, with the JSON type of most of their values."""


def _map_paths(of: pa.DataType, path: str = "") -> dict[str, str]:
    """Return the types of the fields of documents by path, as DDL."""
    found = {path: format_type(of)} if path else {}
    if pa.types.is_struct(of):
        for field in of:
            found |= _map_paths(field.type, join_path(path, field.name))
    elif pa.types.is_list(of):
        found |= _map_paths(of.value_type, f"{path}[]")
    return found


def _list_types(text: bytes, of: pa.StructType) -> Iterator[tuple[str, str]]:
    """Yield path and JSON type of the values in a document, as deep as the columns are."""
    for member in read_members(text) or ():
        yield from _walk_types(member.value, _find_field(of, member.name), member.name)


def _walk_types(value: Any, of: pa.DataType | None, path: str) -> Iterator[tuple[str, str]]:
    yield path, name_json_type(value)
    if isinstance(value, dict) and of is not None and pa.types.is_struct(of):
        for name, inner in value.items():
            yield from _walk_types(inner, _find_field(of, name), join_path(path, name))
    elif isinstance(value, list) and of is not None and pa.types.is_list(of):
        for element in value:
            yield from _walk_types(element, of.value_type, f"{path}[]")


def _find_field(of: pa.StructType, name: str) -> pa.DataType | None:
    at = of.get_field_index(name)
    return None if at < 0 else of.field(at).type


def name_key(text: str | None, key: bytes | None) -> str:
    """Return the key of a document, which is text or bytes, with escapes for unprintable characters."""
    return escape_text(text) if text is not None else escape_bytes(key or b"")


def name_json_type(value: Any) -> str:
    """Return the JSON type of a parsed value: text, number, boolean, object, array or null."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "text"), (dict, "object"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "number"
