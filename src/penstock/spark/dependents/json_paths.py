"""JSON paths: the values that a path reaches in many documents at once.

A path is names joined by dots, `address.city`; a name that has a dot stands in backquotes. At an array, the path
continues in each of its elements, so one document may have many values.

The parser of typed documents follows a path name by name, from the text of one value to the texts in it. In the end it
parses the texts as values of the index's type. Only values that no column would hold are then read one by one: misfits,
and doubles that are rounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.spark.dependents.value_types import MISFIT_CHARACTERS, ValueType
from penstock.spark.values.json_types import may_be_column
from penstock.spark.values.typed_documents import ColumnRule, DocumentParser
from penstock.wire.values.json_value import TooDeepJson, parse_written_json, read_elements

CHUNK_ROWS, CHUNK_BYTES = 16_384, 32 << 20
"""Documents, and about how many bytes, that are parsed at once."""

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

    def add_misfits(self, deep: WrittenValues) -> ExtractedValues:
        """Return these values with others that do not fit, in the order of their rows."""
        rows = np.concatenate([self.rows, deep.rows])
        order = np.argsort(rows, kind="stable")
        misfits = pa.concat_arrays([self.misfits, pa.array(_shorten(deep.texts.to_pylist()), pa.string())])
        values = pa.concat_arrays([self.values, pa.nulls(len(deep.rows), self.values.type)])
        return ExtractedValues(rows[order], values.take(pa.array(order)), misfits.take(pa.array(order)))

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
            parts.append(_extract_chunk(chunk.slice(at, step), names, kind).shift_rows(start + at))
        start += len(chunk)
    return ExtractedValues.join(parts, kind)


def _extract_chunk(documents: pa.Array, names: tuple[str, ...], kind: ValueType) -> ExtractedValues:
    """Return the values of documents that are parsed together."""
    parsed = _make_member_parser(names[0]).parse(documents)
    found = WrittenValues(np.arange(len(documents)), parsed.columns.column(0)).drop_null()
    others = np.flatnonzero(pc.equal(parsed.objects, False).fill_null(False))
    arrays, deep = _read_others(others, documents.take(pa.array(others)))
    found = WrittenValues.merge([found, arrays.enter_arrays().read_member(names[0])])
    for name in names[1:]:
        found = found.enter_arrays().read_member(name)
    found = found.enter_arrays()
    values, misfits = _fit_values(found.texts, kind)
    extracted = ExtractedValues(found.rows, values, misfits)
    return extracted if not len(deep.rows) else extracted.add_misfits(deep)


@dataclass(frozen=True, slots=True)
class WrittenValues:
    """Values as documents have them.

    Attributes:
        rows: the document's row of each value, ascending.
        texts: their JSON.
    """

    rows: npt.NDArray[np.int64]
    texts: pa.StringArray

    @classmethod
    def merge(cls, parts: list[WrittenValues]) -> WrittenValues:
        """Return the values of several parts in the order of their rows."""
        rows, texts = np.concatenate([part.rows for part in parts]), pa.concat_arrays([part.texts for part in parts])
        order = np.argsort(rows, kind="stable")
        return cls(rows[order], texts.take(pa.array(order)))

    def select(self, mask: pa.BooleanArray) -> WrittenValues:
        """Return the values for which the mask is true."""
        if mask.true_count == len(mask):
            return self
        return WrittenValues(self.rows[np.flatnonzero(mask)], self.texts.filter(mask))

    def drop_null(self) -> WrittenValues:
        """Return the values without nulls."""
        return self.select(self.texts.is_valid())

    def read_member(self, name: str) -> WrittenValues:
        """Return the values of a field of those values that are objects."""
        objects = self.select(pc.starts_with(self.texts, "{"))
        found = _make_member_parser(name).parse(objects.texts)
        return WrittenValues(objects.rows, found.columns.column(0)).drop_null()

    def enter_arrays(self) -> WrittenValues:
        """Return the values with the elements of arrays, at any depth, in the place of the arrays."""
        is_array = pc.starts_with(self.texts, "[")
        if not is_array.true_count:
            return self
        lists = _ARRAYS.parse(_write_objects(self.texts.filter(is_array))).columns.column(0)
        places = np.flatnonzero(is_array)[pc.list_parent_indices(lists).to_numpy()]
        # Merged by their places among these values, so that elements stay in their order.
        scalars = WrittenValues(np.arange(len(self.rows)), self.texts).select(pc.invert(is_array))
        merged = WrittenValues.merge([scalars, WrittenValues(places, lists.flatten())]).drop_null()
        return WrittenValues(self.rows[merged.rows], merged.texts).enter_arrays()


_MEMBER = "v"
"""The field of an object that is made for a single value."""
_ARRAYS = DocumentParser([ColumnRule(_MEMBER, pa.list_(pa.string()), form="json")])


@lru_cache(maxsize=64)
def _make_member_parser(name: str) -> DocumentParser:
    return DocumentParser([ColumnRule(_MEMBER, pa.string(), (name,), "json")])


def _write_objects(texts: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise(f'{{"{_MEMBER}":', texts, "}", "")


def _read_others(rows: npt.NDArray[np.int64], documents: pa.Array) -> tuple[WrittenValues, WrittenValues]:
    """Return the elements of documents that are arrays, and the documents that are too deep.

    Args:
        rows: the rows of documents that are no objects.
        documents: these documents.
    """
    found: list[tuple[int, str]] = []
    deep: list[tuple[int, str]] = []
    for row, value in zip(rows.tolist(), documents.to_pylist(), strict=True):
        try:
            if isinstance(parse_written_json(value), list):
                found += [(row, element.written) for element in read_elements(value.decode().strip())]
        except TooDeepJson:
            deep.append((row, value[: 4 * MISFIT_CHARACTERS].decode(errors="replace")))
        except ValueError:
            continue
    return _make_written(found), _make_written(deep)


def _make_written(found: list[tuple[int, str]]) -> WrittenValues:
    texts = pa.array([text for _, text in found], pa.string())
    return WrittenValues(np.array([row for row, _ in found], np.int64), texts).select(pc.not_equal(texts, "null"))


def _fit_values(texts: pa.StringArray, kind: ValueType) -> tuple[pa.Array, pa.StringArray]:
    """Return values in the type of an index, and the beginnings of those that do not fit."""
    typed = DocumentParser([ColumnRule(_MEMBER, kind.type)]).parse(_write_objects(texts)).columns.column(0)
    if pa.types.is_floating(kind.type):
        typed = pc.add(typed, 0.0)  # -0.0 becomes 0.0
    odd = typed.is_null()
    if not odd.true_count:
        return typed, pa.nulls(len(typed), pa.string())
    left = texts.filter(odd).to_pylist()
    fits = pa.array([kind.fit(parse_written_json(text.encode())) for text in left], kind.type)
    misfits = pc.if_else(fits.is_null(), pa.array(_shorten(left), pa.string()), pa.scalar(None, pa.string()))
    nothing = pa.nulls(len(typed), pa.string())
    return pc.replace_with_mask(typed, odd, fits), pc.replace_with_mask(nothing, odd, misfits)


def _shorten(texts: list[str]) -> list[str]:
    return [text[:MISFIT_CHARACTERS] for text in texts]
