"""The shape of a typed table: its collection, and how documents become rows.

A document's key becomes the columns of a key pattern. Fields with a rule become the column of the rule. The other
fields become columns with the names of `spell_columns`, and parts that do not fit become `_rest`. Columns whose names
begin with an underscore are added.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.names import quote_column, spell_columns
from penstock.spark.lake.changelog.found_collections import name_collections
from penstock.spark.lake.changelog.merge_rules import to_key_columns
from penstock.spark.lake.current.document_table import LoadStamp
from penstock.spark.lake.current.version_rules import VERSION_COLUMNS
from penstock.spark.tables.array_elements import make_array_rule
from penstock.spark.tables.column_rules import check_rules, parse_columns, remove_rules
from penstock.spark.tables.inference import infer_fields
from penstock.spark.tables.key_pattern import KeyPattern
from penstock.spark.tables.misfit_documents import Misfits, remove_misfits
from penstock.spark.tables.misfits import MisfitFinder
from penstock.spark.values.json_types import from_ddl, to_ddl
from penstock.spark.values.typed_documents import ColumnRule
from penstock.wire.columns.schema import Event

Mode = Literal["current", "history", "changes"]
"""The meaning of a row: a document that exists, a version of a document, or a change."""
CURRENT: Mode = "current"
HISTORY: Mode = "history"
CHANGES: Mode = "changes"
Deletes = Literal["remove", "mark"]
"""The fate of a deleted document's row: it is removed, or it stays with `_deleted` and without values."""
KEY = "_key"
"""The column of the whole key, unless a column of the key pattern has it."""
DEFAULT_KEY = f"{KEY} STRING"
_TIME = pa.timestamp("us", "UTC")
METADATA = {
    "changed_at": _TIME,
    "loaded_at": _TIME,
    "batch": pa.int64(),
    "vbucket": pa.int32(),
    "history": pa.int32(),
    "seqno": pa.int64(),
}
"""Columns about a row that a declaration can name, without their underscore."""
DEFAULT_METADATA = ("changed_at", "loaded_at", "batch")
IDENTITY = pa.schema([("_key_bytes", pa.binary()), ("_collection_id", pa.int64())])
"""Columns that name the document, beside its key and vbucket."""
POSITION = ("vbucket", "history", "seqno")
"""Metadata that every table has: merges find the rows by them."""
MARKS = pa.schema([("_deleted", pa.bool_()), ("_deleted_at", _TIME)])
MODE_COLUMNS = {CURRENT: pa.schema([]), HISTORY: VERSION_COLUMNS, CHANGES: pa.schema([("_event", pa.string())])}
"""Columns that a table has because of its mode."""
OLDEST_CAS = 10**18
"""The cas of 2001 in nanoseconds. A bucket of a server before 4.6 has random numbers, mostly far from the present."""
NEWEST_CAS = 4 * 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """The collection and the columns of a typed table. Raises UsageError if two columns have one name.

    Attributes:
        name: the table's name, unique in a lake.
        fields: fields of the documents with their types.
        scope, collection: the collection.
        key: the pattern of the keys.
        deletes: whether the rows of deleted documents are removed or marked.
        metadata: names of METADATA.
        rules: the columns of single fields, in their order. `fields` has none of these fields.
        children: the paths of arrays that have tables of their own. `fields` has none of these fields.
        misfits: the fate of values that do not fit their column.
        mode: the meaning of a row.
        cluster_by: names of columns that decide the order of rows within a file.
    """

    name: str
    fields: pa.Schema
    scope: str = "_default"
    collection: str = "_default"
    key: KeyPattern = KeyPattern.parse(DEFAULT_KEY)  # noqa: RUF009 - an immutable value
    deletes: Deletes = "remove"
    metadata: tuple[str, ...] = DEFAULT_METADATA
    rules: tuple[ColumnRule, ...] = ()
    children: tuple[tuple[str, ...], ...] = ()
    misfits: Misfits = "rest"
    mode: Mode = CURRENT
    cluster_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.deletes == "mark" and self.mode != CURRENT:
            raise UsageError(
                f"deletes is 'mark', and mode is {self.mode!r}, which keeps the rows of deleted documents anyway;"
                " expected deletes = 'remove', or mode = 'current'"
            )
        keys = [part.name for part in self.key.parts]
        for name in keys:
            if quote_column(name) != name and self.key.text != DEFAULT_KEY:
                text = "expected letters, digits and underscores, and no column that Penstock adds"
                raise UsageError(f"key is {self.key.text!r}, where a column is {name!r}; {text}")
        taken = dict.fromkeys((name.lower() for name in keys), f"key {self.key.text!r}")
        for rule in self.rules:
            place, other = f"columns for field {'.'.join(rule.path)!r}", taken.get(rule.name.lower())
            if other:
                raise UsageError(f"column {rule.name!r} is in {place} and in {other}, expected another name")
            taken[rule.name.lower()] = place
        check_rules(self.rules, self.fields)
        for field in self.fields.names:
            if other := taken.get(quote_column(field).lower()):
                raise UsageError(f"column {field!r} is in schema and in {other}, expected another name")

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table, without the partition."""
        parts = [pa.field(part.name, part.type) for part in self.key.parts]
        values = self._value_columns
        marks = MARKS if self.deletes == "mark" else MODE_COLUMNS[self.mode]
        names = dict.fromkeys((*self.metadata, *POSITION))
        about = [pa.field(f"_{name}", METADATA[name]) for name in names]
        whole = [] if self.key_column != KEY or self.key.is_whole else [pa.field(KEY, pa.string())]
        return pa.schema([*parts, *values, *marks, ("_rest", pa.string()), *about, *whole, *IDENTITY])

    def find_order(self) -> tuple[str, ...]:
        """Return those of `cluster_by` that are columns with single values. An inferred column may be missing yet."""
        known = {each.name for each in self.columns if not pa.types.is_nested(each.type)}
        return tuple(name for name in self.cluster_by if name in known)

    @property
    def declared_columns(self) -> list[str]:
        """The names of the columns of the key and of rules."""
        return [*(part.name for part in self.key.parts), *(rule.name for rule in self.rules)]

    @property
    def _value_columns(self) -> list[pa.Field]:
        """The columns of values: those of rules, and those of the other fields."""
        return [*(pa.field(rule.name, _spell_type(rule.type)) for rule in self.rules), *_spell_fields(self.fields)]

    @property
    def parsed_rules(self) -> tuple[ColumnRule, ...]:
        """The rules that documents are parsed with: an array of a child is no column, and is not in `_rest`."""
        return (*self.rules, *map(make_array_rule, self.children))

    @property
    def parsed_fields(self) -> pa.Schema:
        """The fields that documents are parsed with, beside `parsed_rules`."""
        return self.fields

    @property
    def key_column(self) -> str:
        """The column that has the whole key as text."""
        return self.key.parts[0].name if self.key.is_whole else KEY

    @property
    def key_columns(self) -> tuple[str, str]:
        """The columns that have the whole key, as text and as bytes."""
        return (self.key_column, "_key_bytes")

    @property
    def lookup(self) -> tuple[str, ...]:
        """The columns that identify a document, in the order of LOOKUP_COLUMNS."""
        return ("_vbucket", "_collection_id", *self.key_columns)

    @property
    def position(self) -> tuple[str, ...]:
        """The columns that identify a change, in the order of POSITION_COLUMNS."""
        return tuple(f"_{name}" for name in POSITION)

    @property
    def row_number(self) -> str:
        """The column that differs between the rows of a document; empty because there is one row."""
        return ""

    def infer(self, values: Iterable[bytes | None]) -> Self:
        """Return the shape with the fields of some documents."""
        return self.take_fields(infer_fields(values))

    def take_fields(self, fields: pa.Schema) -> Self:
        """Return the shape with inferred fields.

        Fields with a rule or a child are left out, and fields named like the column of a key or of a rule.
        """
        found = remove_rules(fields, self.parsed_rules)
        taken = {name.lower() for name in self.declared_columns}
        kept = [each for each in found if quote_column(each.name).lower() not in taken]
        return replace(self, fields=pa.schema(kept))

    def to_json(self) -> str:
        """Return everything that decides about rows but the name, as the table's metadata hold it."""
        leaves_out = {"misfits": self.misfits} if self.misfits == "dead_letter" else {}
        order = {"cluster_by": self.cluster_by} if self.cluster_by else {}
        return json.dumps(
            leaves_out
            | order
            | {
                "collection": f"{self.scope}.{self.collection}",
                "schema": to_ddl(self.fields) if len(self.fields) else "",
                "columns": [
                    {"field": rule.path, "column": to_ddl(pa.schema([(rule.name, rule.type)])), "form": rule.form}
                    for rule in self.rules
                ],
                "children": self.children,
                "key": self.key.text,
                "deletes": self.deletes,
                "metadata": list(self.metadata),
                "mode": self.mode,
            }
        )

    @classmethod
    def from_json(cls, name: str, text: str) -> Self:
        """Return the shape that `to_json` has written.

        Args:
            name: the name of the table.
            text: the JSON.
        """
        found = json.loads(text)
        scope, _, collection = found["collection"].rpartition(".")
        fields = from_ddl(found["schema"]) if found["schema"] else pa.schema([])
        return cls(
            name=name,
            fields=fields,
            scope=scope,
            collection=collection,
            key=KeyPattern.parse(found["key"]),
            deletes=found["deletes"],
            metadata=tuple(found["metadata"]),
            misfits=found.get("misfits", "rest"),
            mode=found.get("mode", CURRENT),
            cluster_by=tuple(found.get("cluster_by", ())),
            rules=tuple(
                ColumnRule(column.name, column.type, tuple(each["field"]), each["form"])
                for each in found.get("columns", ())
                for column in from_ddl(each["column"])
            ),
            children=tuple(tuple(path) for path in found.get("children", ())),
        )

    def mark_members(self, changes: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the changes that name the collection. Markers without a name count to the default one."""
        scopes, collections = name_collections(changes)
        is_member = pc.and_(pc.equal(scopes, self.scope), pc.equal(collections, self.collection))
        return pc.fill_null(is_member, False)

    def select_documents(self, changes: pa.Table) -> pa.Table:
        """Return the newest changes of documents that have a row in the table."""
        is_member = self.mark_members(changes)
        if self.deletes == "remove":
            is_member = pc.and_(is_member, pc.equal(changes["event"], Event.MUTATION))
        return changes.filter(is_member)

    def to_rows(self, changes: pa.Table, stamp: LoadStamp) -> pa.Table:
        """Return the rows of the newest changes of documents.

        Args:
            changes: rows in MERGE_SCHEMA.
            stamp: the merge that writes the rows.

        Returns:
            Rows with `columns`.
        """
        return self.make_rows(self.select_documents(changes), stamp)

    def make_rows(self, changes: pa.Table, stamp: LoadStamp) -> pa.Table:
        """Return a row for each of some changes of the collection, apart from dead letters.

        VERSION_COLUMNS are empty.

        Args:
            changes: rows in MERGE_SCHEMA.
            stamp: the merge that writes the rows.
        """
        columns = self.columns
        if self.misfits != "rest":
            finder = MisfitFinder(self.parsed_fields, self.parsed_rules)
            changes = remove_misfits(changes, finder, self.misfits, self.name)
        is_deleted = pc.not_equal(changes["event"], Event.MUTATION)
        values = pc.if_else(is_deleted, pa.scalar(None, pa.binary()), changes["value"]).combine_chunks()
        parsed, rest = parse_columns(values, self.parsed_rules, self.fields)
        fields = [*parsed[: len(self.rules)], *parsed[len(self.parsed_rules) :]]
        changed_at = read_times(changes["cas"])
        key, key_bytes = to_key_columns(changes)
        found = {
            KEY: key,
            "_key_bytes": key_bytes,
            "_rest": rest,
            "_changed_at": changed_at,
            "_loaded_at": pa.repeat(pa.scalar(stamp.at, _TIME), changes.num_rows),
            "_batch": pa.repeat(pa.scalar(stamp.batch, pa.int64()), changes.num_rows),
            "_event": changes["event"],
            "_deleted": is_deleted,
            "_deleted_at": pc.if_else(is_deleted, changed_at, pa.scalar(None, _TIME)),
        }
        found |= {f"_{name}": changes[name] for name in ("collection_id", *POSITION)}
        found |= {field.name: pa.nulls(changes.num_rows, field.type) for field in VERSION_COLUMNS}
        parts = self.key.split_keys(key.combine_chunks()).columns
        found |= {part.name: column for part, column in zip(self.key.parts, parts, strict=True)}
        found |= {
            field.name: _rename_fields(column, field.type)
            for field, column in zip(self._value_columns, fields, strict=True)
        }
        return pa.table([found[name] for name in columns.names], schema=columns)


def _spell_fields(fields: Iterable[pa.Field]) -> list[pa.Field]:
    """Return fields with the names of columns, at all levels."""
    found = list(fields)
    columns = spell_columns([field.name for field in found])
    return [pa.field(column, _spell_type(field.type)) for column, field in zip(columns, found, strict=True)]


def _spell_type(of: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(of):
        return pa.struct(_spell_fields(of))
    return pa.list_(_spell_type(of.value_type)) if pa.types.is_list(of) else of


def _rename_fields(values: pa.Array, of: pa.DataType) -> pa.Array:
    """Return values in a type that differs in names alone."""
    if values.type == of:
        return values
    if pa.types.is_struct(of):
        children = [_rename_fields(child, field.type) for child, field in zip(values.flatten(), of, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(of), mask=values.is_null())
    ends = np.cumsum(pc.fill_null(pc.list_value_length(values), 0))
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    elements = _rename_fields(values.flatten(), of.value_type)
    return pa.ListArray.from_arrays(offsets, elements, type=of, mask=values.is_null())


def read_times(cas: pa.ChunkedArray) -> pa.Array:
    """Return the times of hybrid clocks, null for all other numbers. The low 16 bits are a counter."""
    clocks = pc.fill_null(cas, 0).to_numpy()
    is_time = (clocks > OLDEST_CAS) & (clocks < NEWEST_CAS)
    return pa.array((clocks & ~0xFFFF) // 1000, _TIME, mask=~is_time, from_pandas=False)
