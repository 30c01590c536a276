"""JSON paths: the values that a path reaches in many documents at once.

A path is names joined by dots, `address.city`; a name that has a dot stands in backquotes. At an array, the path
continues in each of its elements, so one document may have many values.

json_batches parses whole chunks with a schema of only the path. It refuses a chunk with a document of another shape, or
a value of another type. Then the halves of the chunk are tried, and at last each document is parsed alone. Both readers
give the same values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.spark.dependents.value_types import MISFIT_CHARACTERS, ValueType
from penstock.spark.values.json_batches import find_safe, read_batch
from penstock.spark.values.json_types import may_be_column
from penstock.wire.values.json_value import TooDeepJson, WrittenFloat, call_with_levels, parse_written_json

CHUNK_ROWS, CHUNK_BYTES = 16_384, 32 << 20
"""Documents, and about how many bytes, that are parsed at once; Arrow's reader takes at most 2 GiB."""
SINGLE_ROWS = 16
"""A chunk of at most this size that Arrow refuses is read document by document."""

_NAME = re.compile(r"`(?P<quoted>[^`]+)`|(?P<plain>[^`.\[\]]+)")


def parse_path(text: str) -> tuple[str, ...]:
    """Return the names in a path.

    Args:
        text: the path, such as address.city.

    Returns:
        One name for each step.

    Raises:
        UsageError: the text is not a path.
    """
    names: list[str] = []
    at = 0
    while (match := _NAME.match(text, at)) and may_be_column(match["quoted"] or match["plain"]):
        names.append(match["quoted"] or match["plain"])
        at = match.end()
        if at == len(text):
            return tuple(names)
        if text[at] != ".":
            break
        at += 1
    raise UsageError(f"the path is {text!r}; expected names joined by dots, such as address.city or `a.b`.c")


def find_values(document: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """Yield the values that a path reaches in a document: of arrays the elements at any depth, but no null."""
    waiting = [(document, 0)]
    while waiting:
        found, step = waiting.pop()
        if isinstance(found, list):
            waiting += [(element, step) for element in reversed(found)]
        elif step == len(names):
            if found is not None:
                yield found
        elif isinstance(found, dict):
            waiting.append((found.get(names[step]), step + 1))


@dataclass(frozen=True, slots=True)
class ExtractedValues:
    """The values that a path reached in some documents.

    Attributes:
        rows: the document's row of each value, ascending.
        values: the values, null for a misfit.
        misfits: the start of the JSON that stands in the place of a value of the right type; null for a value.
    """

    rows: npt.NDArray[np.int64]
    values: pa.Array
    misfits: pa.Array

    @classmethod
    def join(cls, parts: list[ExtractedValues], kind: ValueType) -> ExtractedValues:
        """Return the values of consecutive documents as one."""
        return cls(
            np.concatenate([np.zeros(0, np.int64), *(part.rows for part in parts)]),
            pa.concat_arrays([pa.array([], kind.type), *(part.values for part in parts)]),
            pa.concat_arrays([pa.array([], pa.string()), *(part.misfits for part in parts)]),
        )

    def shift_rows(self, offset: int) -> ExtractedValues:
        """Return the same values with row numbers that start at `offset`."""
        return ExtractedValues(self.rows + offset, self.values, self.misfits)


def extract_values(documents: pa.Array | pa.ChunkedArray, names: tuple[str, ...], kind: ValueType) -> ExtractedValues:
    """Return the values that a path reaches in documents. Text that is not JSON has no values.

    A document that is too deep to be read is a misfit itself.

    Args:
        documents: binary, null for no document.
        names: the path.
        kind: the type of the values.

    Returns:
        Values and misfits.
    """
    chunks = documents.chunks if isinstance(documents, pa.ChunkedArray) else [documents]
    parts, start = [], 0
    for chunk in chunks:
        step = max(1, min(CHUNK_ROWS, len(chunk) * CHUNK_BYTES // max(1, chunk.nbytes)))
        for at in range(0, len(chunk), step):
            parts.append(DocumentChunk(chunk.slice(at, step), names, kind).extract().shift_rows(start + at))
        start += len(chunk)
    return ExtractedValues.join(parts, kind)


@dataclass(frozen=True, slots=True)
class DocumentChunk:
    """Documents that are parsed together."""

    documents: pa.Array
    names: tuple[str, ...]
    kind: ValueType

    def extract(self) -> ExtractedValues:
        """Return the values of the documents."""
        if not len(self.documents):
            return ExtractedValues.join([], self.kind)
        if self.documents.null_count:
            return self._extract_masked(pc.is_valid(self.documents))
        safe = find_safe(self.documents, self.kind.unsafe)
        if safe.true_count < len(safe):
            return self._extract_apart(pc.invert(safe))
        return self._extract_halves(self.documents)

    def _extract_masked(self, mask: pa.Array) -> ExtractedValues:
        """Return the values of the documents that `mask` selects."""
        rows = np.flatnonzero(mask)
        found = DocumentChunk(self.documents.take(pa.array(rows)), self.names, self.kind).extract()
        return ExtractedValues(rows[found.rows], found.values, found.misfits)

    def _extract_apart(self, unsafe: pa.Array) -> ExtractedValues:
        """Return the values of all documents; unsafe documents are read one by one and the others together."""
        rows = np.flatnonzero(unsafe)
        single = self._parse_singly(self.documents.take(pa.array(rows)))
        rest = self._extract_masked(pc.invert(unsafe))
        both = ExtractedValues.join(
            [ExtractedValues(rows[single.rows], single.values, single.misfits), rest], self.kind
        )
        order = np.argsort(both.rows, kind="stable")
        return ExtractedValues(both.rows[order], both.values.take(pa.array(order)), both.misfits.take(pa.array(order)))

    def _extract_halves(self, documents: pa.Array) -> ExtractedValues:
        """Return the values of safe documents, read together or in halves that Arrow accepts."""
        values = self._parse_together(documents)
        if values is not None:
            return values
        if len(documents) <= SINGLE_ROWS:
            return self._parse_singly(documents)
        half = len(documents) // 2
        return ExtractedValues.join(
            [self._extract_halves(documents[:half]), self._extract_halves(documents[half:]).shift_rows(half)], self.kind
        )

    def _parse_together(self, documents: pa.Array) -> ExtractedValues | None:
        """Return the values that Arrow's reader finds, None if it refuses the documents."""
        try:
            # The type must state how many arrays enclose the value. The first document decides; if others differ,
            # Arrow refuses the chunk.
            depths = measure_depths(parse_written_json(documents[0].as_py()), self.names)
        except ValueError:
            return None
        of = _build_type(self.names, depths, self.kind.parsed)
        column = read_batch(documents, of, ignores_others=True)
        if column is None:
            return None
        rows, parsed = _flatten_column(column, np.arange(len(documents)), self.names, depths)
        values = self.kind.convert(parsed)
        if values is None:
            # Text is still as in the document and can be fitted. A number that became infinite has lost its text.
            return self._fit_values(rows, parsed.to_pylist()) if self.kind.parsed == pa.string() else None
        return ExtractedValues(rows, values, pa.nulls(len(values), pa.string()))

    def _parse_singly(self, documents: pa.Array) -> ExtractedValues:
        rows: list[int] = []
        values: list[Any] = []
        for row, text in enumerate(documents.to_pylist()):
            try:
                found = list(find_values(parse_written_json(text), self.names))
            except TooDeepJson:
                found = [text]  # bytes fit no type
            except ValueError:
                continue
            values += found
            rows += [row] * len(found)
        return self._fit_values(np.array(rows, np.int64), values)

    def _fit_values(self, rows: npt.NDArray[np.int64], values: list[Any]) -> ExtractedValues:
        fits = [self.kind.fit(value) for value in values]
        misfits = [_shorten_json(value) if fit is None else None for value, fit in zip(values, fits, strict=True)]
        return ExtractedValues(rows, pa.array(fits, self.kind.type), pa.array(misfits, pa.string()))


_ENCODER = json.JSONEncoder(ensure_ascii=False)


def _shorten_json(value: Any) -> str:
    """Return the beginning of a value's JSON, with a number as it was written; or that of a document, as bytes."""
    if isinstance(value, bytes):
        text = value[:MISFIT_CHARACTERS].decode(errors="replace")
    elif isinstance(value, WrittenFloat):
        text = value.text
    else:
        text = call_with_levels(_ENCODER.encode, value)
    return text[:MISFIT_CHARACTERS].encode(errors="replace").decode()


def measure_depths(document: Any, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return how many arrays enclose the value at each step of a path, the document itself first."""
    depths = []
    for name in (*names, None):
        depth = 0
        while isinstance(document, list):
            depth += 1
            document = next((element for element in document if element is not None), None)
        depths.append(depth)
        document = document.get(name) if isinstance(document, dict) else None
    return tuple(depths)


def _build_type(names: tuple[str, ...], depths: tuple[int, ...], leaf: pa.DataType) -> pa.DataType:
    """Return the type of a document with only the path."""
    kind = leaf
    for name, depth in zip((*names[::-1], None), depths[::-1], strict=True):
        for _ in range(depth):
            kind = pa.list_(kind)
        if name is not None:
            kind = pa.struct([(name, kind)])
    return kind


def _flatten_column(
    column: pa.Array, rows: npt.NDArray[np.int64], names: tuple[str, ...], depths: tuple[int, ...]
) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return the rows and the values that a path reaches in a column of `_build_type`, without nulls."""
    for name, depth in zip((None, *names), depths, strict=True):
        if name is not None:
            column = pc.struct_field(column, name)
        for _ in range(depth):
            rows, column = rows[pc.list_parent_indices(column).to_numpy()], pc.list_flatten(column)
    valid = pc.is_valid(column)
    return rows[np.flatnonzero(valid)], column.drop_null()
