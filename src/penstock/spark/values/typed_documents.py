"""JSON documents as typed Arrow columns, with the parts that do not fit, and counts of them.

The rules of columns are in docs/views.md. The extension module reads a batch in one pass; without it, document_rows
reads each document. Both give the same result.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.spark.values.column_tree import (
    FORMS,
    ColumnNode,
    NodeKind,
    NodeTable,
    Reason,
    build_type_node,
    encode_tree,
    join_path,
)
from penstock.spark.values.document_rows import DocumentRow, DocumentRowReader
from penstock.wire.codec import native
from penstock.wire.values.json_value import MAX_LEVELS

SLICE_BYTES = 16 << 20
"""The most bytes that are parsed at once, except for a single larger value."""
SAMPLE_ROWS = 3
"""Rows that a misfit names; the extension module has the same number."""
MAX_UNKNOWN = 1000
"""The most names of unknown fields that are counted apart; the extension module has the same number."""
BINARY_BEGINNING = '{"_binary": "'
"""The beginning of the rest of a value that is no text. The rest of an object has no space there."""
OTHER_NAMES = "*"
"""The path of the unknown fields above MAX_UNKNOWN."""


@dataclass(frozen=True)
class ColumnRule:
    """A column of documents.

    Attributes:
        name: the column.
        type: its Arrow type.
        path: the names that lead to its value; the name of the column alone by default.
        form: `unix_s`, `unix_ms` or `unix_us` for times that are numbers since 1970. `json` for strings that hold any
            value as JSON text.
    """

    name: str
    type: pa.DataType
    path: tuple[str, ...] = ()
    form: str | None = None


@dataclass(frozen=True)
class Misfit:
    """Values that are not in a column, for one reason.

    Attributes:
        count: how many values.
        rows: the first rows with such a value, ascending.
    """

    count: int
    rows: tuple[int, ...]

    def join(self, other: Misfit) -> Misfit:
        """Return the sum of two misfits of the same field and reason."""
        return Misfit(self.count + other.count, tuple(sorted({*self.rows, *other.rows})[:SAMPLE_ROWS]))


@dataclass(frozen=True)
class ParsedDocuments:
    """The columns of some documents.

    Attributes:
        columns: a column for each rule. All are null for a value that is no JSON object.
        rest: the parts that do not fit, as a JSON object; null where all fits, and for a value that is no JSON object.
        misfits: (path of a field, reason) -> its values that are not in a column. The path is empty for a
            whole document.
        objects: whether each value is a JSON object; null for null.
    """

    columns: pa.RecordBatch
    rest: pa.StringArray
    misfits: Mapping[tuple[str, str], Misfit]
    objects: pa.BooleanArray

    def fill_rest(self, values: pa.BinaryArray) -> pa.StringArray:
        """Return the rest, with the values that are not JSON objects as they are.

        Args:
            values: the documents. One that is not UTF-8 becomes `{"_binary": "<base64>"}`.
        """
        is_other = pc.fill_null(pc.invert(self.objects), False)
        if not is_other.true_count:
            return self.rest
        others = pa.array([_write_other(value) for value in values.filter(is_other).to_pylist()], pa.string())
        return pc.replace_with_mask(self.rest, is_other, others)


def _write_other(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return json.dumps({"_binary": base64.b64encode(value).decode()})


class DocumentParser:
    """Parses documents by rules, which are compiled once.

    Args of the constructor:
        rules: the columns, in their order.

    Raises:
        UsageError: JSON has no values of a type, two rules have one name, or the path of one leads into another.
    """

    def __init__(self, rules: Sequence[ColumnRule]) -> None:
        self._rules = tuple(rules)
        self._root = _build_tree(self._rules)
        self._schema = pa.schema([(rule.name, rule.type) for rule in self._rules])
        self._table = encode_tree(self._root, self._schema.names)
        numbered = [(f"c{number}", rule.type) for number, rule in enumerate(self._rules)]
        self._exported = pa.struct([*numbered, ("rest", pa.string()), ("objects", pa.bool_())])

    def parse(self, values: pa.Array) -> ParsedDocuments:
        """Return the columns of documents.

        Args:
            values: documents, binary or text; null for none.
        """
        is_large = pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type)
        given = values.cast(pa.large_binary() if is_large else pa.binary())
        parse = self._parse_natively if native.extension is not None else self._parse_rows
        parts = [parse(each) for each in slice_values(given)]
        return parts[0] if len(parts) == 1 else self._join_parts(parts)

    def _join_parts(self, parts: Sequence[ParsedDocuments]) -> ParsedDocuments:
        found: list[tuple[tuple[str, str], Misfit]] = []
        start = 0
        for part in parts:
            for place, misfit in part.misfits.items():
                found.append((place, Misfit(misfit.count, tuple(row + start for row in misfit.rows))))
            start += len(part.rest)
        columns = [pa.concat_arrays([part.columns.column(at) for part in parts]) for at in range(len(self._rules))]
        return ParsedDocuments(
            self._make_batch(columns, start),
            pa.concat_arrays([part.rest for part in parts]),
            _limit_unknown(_join_misfits(found)),
            pa.concat_arrays([part.objects for part in parts]),
        )

    def _make_batch(self, columns: Sequence[pa.Array], count: int) -> pa.RecordBatch:
        if columns:
            return pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))

    def _parse_natively(self, values: pa.Array) -> ParsedDocuments:
        assert native.extension is not None
        validity, offsets, data = values.buffers()
        capsule, found = native.extension.parse_documents(
            self._table.numbers,
            self._table.names,
            MAX_LEVELS,
            len(self._rules),
            validity or b"",
            offsets or bytes(8),
            data or b"",
            pa.types.is_large_binary(values.type),
            values.offset,
            len(values),
        )
        *columns, rest, objects = pa.array(_ExportedArray(self._exported, capsule)).flatten()
        misfits = _join_misfits((_name_misfit(self._table, *each[:3]), Misfit(*each[3:])) for each in found)
        return ParsedDocuments(self._make_batch(columns, len(values)), rest, misfits, objects)

    def _parse_rows(self, values: pa.Array) -> ParsedDocuments:
        reader = DocumentRowReader(self._root)
        rows: list[DocumentRow] = []
        objects: list[bool | None] = []
        misfits: dict[tuple[str, str], Misfit] = {}
        names: set[tuple[int, str]] = set()
        for row, value in enumerate(values.to_pylist()):
            if value is None:
                rows.append((None, None))
                objects.append(None)
                continue
            rows.append(reader.read_row(value))
            objects.append(rows[-1][0] is not None)
            for node, reason, name in reader.found:
                path = node.path
                if reason is Reason.UNKNOWN:
                    is_counted = (id(node), name) in names or len(names) < MAX_UNKNOWN
                    names.update([(id(node), name)] if is_counted else [])
                    path = join_path(path, name) if is_counted else OTHER_NAMES
                place, one = (path, reason.words), Misfit(1, (row,))
                misfits[place] = misfits[place].join(one) if place in misfits else one
        columns = [
            pa.array([None if found is None else found.get(rule.name) for found, _ in rows], rule.type)
            for rule in self._rules
        ]
        rest = pa.array([left for _, left in rows], pa.string())
        return ParsedDocuments(self._make_batch(columns, len(rows)), rest, misfits, pa.array(objects, pa.bool_()))


@dataclass(frozen=True, slots=True)
class _ExportedArray:
    """An array of the extension module, which pyarrow takes over by Arrow's PyCapsule interface.

    Attributes:
        type: the type of the array.
        capsule: the array.
    """

    type: pa.DataType
    capsule: object

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.type.__arrow_c_schema__(), self.capsule


def _name_misfit(table: NodeTable, node: int, reason: int, name: bytes) -> tuple[str, str]:
    if node < 0:
        return OTHER_NAMES, Reason.UNKNOWN.words
    path = table.paths[node]
    if reason == Reason.UNKNOWN:
        path = join_path(path, name.decode("utf-8", "surrogatepass"))
    return path, Reason(reason).words


def _join_misfits(found: Iterable[tuple[tuple[str, str], Misfit]]) -> dict[tuple[str, str], Misfit]:
    misfits: dict[tuple[str, str], Misfit] = {}
    for place, misfit in found:
        misfits[place] = misfits[place].join(misfit) if place in misfits else misfit
    return misfits


def _limit_unknown(misfits: Mapping[tuple[str, str], Misfit]) -> dict[tuple[str, str], Misfit]:
    """Return misfits with at most MAX_UNKNOWN names of unknown fields."""
    limited: list[tuple[tuple[str, str], Misfit]] = []
    names = 0
    for (path, reason), misfit in misfits.items():
        names += reason == Reason.UNKNOWN.words
        is_other = reason == Reason.UNKNOWN.words and names > MAX_UNKNOWN
        limited.append(((OTHER_NAMES if is_other else path, reason), misfit))
    return _join_misfits(limited)


def _build_tree(rules: Sequence[ColumnRule]) -> ColumnNode:
    """Return the group that is a document.

    Raises:
        UsageError: JSON has no values of a type, two rules have one name, or the path of one leads into another.
    """
    root = ColumnNode(NodeKind.GROUP)
    if len({rule.name for rule in rules}) < len(rules):
        raise UsageError(f"columns {', '.join(rule.name for rule in rules)}; expected each name once")
    for rule in rules:
        if rule.form is not None and rule.form not in (*FORMS, "json"):
            raise UsageError(f"the form of {rule.name} is {rule.form!r}; expected {', '.join(FORMS)} or json")
        *outer, last = rule.path or (rule.name,)
        group = root
        for name in outer:
            path = join_path(group.path, name)
            group = group.members.setdefault(name, ColumnNode(NodeKind.GROUP, path))
            if group.kind is not NodeKind.GROUP:
                raise UsageError(f"the path of column {rule.name} leads into column {group.name}; expected other paths")
        path = join_path(group.path, last)
        if last in group.members:
            raise UsageError(f"column {rule.name} has path {path} of another column; expected each path once")
        group.members[last] = build_type_node(rule.type, path, rule.name, rule.form)
    return root


def slice_values(values: pa.Array) -> Iterator[pa.Array]:
    """Divide values into slices.

    Yields:
        Slices of about SLICE_BYTES, at least one.
    """
    if len(values) <= 1 or values.nbytes <= SLICE_BYTES:
        yield values
        return
    lengths: Any = pc.fill_null(pc.binary_length(values), 0)
    ends = np.cumsum(lengths.to_numpy(), dtype=np.int64)
    start = 0
    while start < len(values):
        before = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + SLICE_BYTES, side="right")))
        yield values.slice(start, end - start)
        start = end
