"""A path into JSON documents, and the values that it reaches in many of them at once.

A path is names joined by dots, `address.city`; a name that holds a dot is in backquotes. Wherever an array is met, the
path goes on in each of its elements, so that one document may have many values.

Whole chunks go through Arrow's JSON reader with a schema of just the path. Where that refuses one (a document of
another shape, a value of another type, text that is no JSON), its halves are tried, and at last one document at a time
by `json`, which decides; both read strict JSON, and give the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from penstock.errors import UsageError
from penstock.spark.dependents.value_types import MISFIT_CHARACTERS, ValueType
from penstock.spark.values.utf8 import is_utf8

CHUNK_ROWS, CHUNK_BYTES = 16_384, 32 << 20
"""What is parsed at once; Arrow's reader takes no more than 2 GiB."""
MOST_OPENED = 1000
"""Braces and brackets in a document, above which it may be too deep for Arrow's reader."""
SINGLE_ROWS = 16
"""A chunk as small as this that Arrow refuses is read document by document."""

_NAME = re.compile(r"`(?P<quoted>[^`]+)`|(?P<plain>[^`.\[\]]+)")
_STRANGE = r"\x00|[:,\[]\s*-?(?:NaN|Inf)"
"""A zero byte ends what Arrow reads, and these it takes for numbers. In a string that only costs time."""


def parse_path(text: str) -> tuple[str, ...]:
    """Return the names in a path. Raises UsageError."""
    names: list[str] = []
    at = 0
    while match := _NAME.match(text, at):
        names.append(match["quoted"] or match["plain"])
        at = match.end()
        if at == len(text):
            return tuple(names)
        if text[at] != ".":
            break
        at += 1
    raise UsageError(f"the path is {text!r}; expected names joined by dots, such as address.city or `a.b`.c")


def read_json(value: bytes) -> Any:
    """Return what a document holds. Raises ValueError if it is no JSON (RFC 8259: neither NaN nor Infinity)."""
    try:
        return _DECODER.decode(value.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def reached(document: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """Yield what a path reaches in a document; of arrays the elements, however deep; null is nothing."""
    if isinstance(document, list):
        for element in document:
            yield from reached(element, names)
    elif names and isinstance(document, dict):
        yield from reached(document.get(names[0]), names[1:])
    elif not names and document is not None:
        yield document


@dataclass(frozen=True, slots=True)
class ExtractedValues:
    """Values that a path reached. rows: of the document each is in, ascending. values: null for a misfit. misfits:
    the beginning of the JSON that was found in place of a value of the kind; null for a value."""

    rows: npt.NDArray[np.int64]
    values: pa.Array
    misfits: pa.Array

    @classmethod
    def of(cls, parts: list[ExtractedValues], kind: ValueType) -> ExtractedValues:
        """Join what was found in documents one after the other."""
        return cls(
            np.concatenate([np.zeros(0, np.int64), *(part.rows for part in parts)]),
            pa.concat_arrays([pa.array([], kind.type), *(part.values for part in parts)]),
            pa.concat_arrays([pa.array([], pa.string()), *(part.misfits for part in parts)]),
        )

    def moved(self, by: int) -> ExtractedValues:
        """Return the same with row numbers that begin at `by`."""
        return ExtractedValues(self.rows + by, self.values, self.misfits)


def extract(documents: pa.Array | pa.ChunkedArray, names: tuple[str, ...], kind: ValueType) -> ExtractedValues:
    """Return what a path reaches in documents (binary, null for none); what is no JSON reaches nothing."""
    chunks = documents.chunks if isinstance(documents, pa.ChunkedArray) else [documents]
    parts, start = [], 0
    for chunk in chunks:
        step = max(1, min(CHUNK_ROWS, len(chunk) * CHUNK_BYTES // max(1, chunk.nbytes)))
        for at in range(0, len(chunk), step):
            parts.append(_Chunk(chunk.slice(at, step), names, kind).found().moved(start + at))
        start += len(chunk)
    return ExtractedValues.of(parts, kind)


@dataclass(frozen=True, slots=True)
class _Chunk:
    documents: pa.Array
    names: tuple[str, ...]
    kind: ValueType

    def found(self) -> ExtractedValues:
        if not len(self.documents):
            return ExtractedValues.of([], self.kind)
        if self.documents.null_count:
            return self._some(pc.is_valid(self.documents))
        strange = self._strange()
        if strange is not None:
            return self._apart(strange)
        return self._halved(pc.replace_substring(self.documents, b"\n", b" "))

    def _some(self, wanted: pa.Array) -> ExtractedValues:
        """Return what is found in the wanted rows."""
        rows = np.flatnonzero(wanted)
        found = _Chunk(self.documents.take(pa.array(rows)), self.names, self.kind).found()
        return ExtractedValues(rows[found.rows], found.values, found.misfits)

    def _strange(self) -> pa.Array | None:
        """Return which documents Arrow must not be given: what it would take for JSON, and what breaks it."""
        tests = [pc.match_substring_regex(self.documents, _STRANGE)]
        if pc.max(pc.binary_length(self.documents)).as_py() > MOST_OPENED:
            opened = pc.add(pc.count_substring(self.documents, b"{"), pc.count_substring(self.documents, b"["))
            tests.append(pc.greater(opened, MOST_OPENED))
        try:
            self.documents.cast(pa.string())
        except pa.ArrowInvalid:
            tests.append(pc.invert(is_utf8(self.documents)))
        strange = reduce(pc.or_, tests)
        return strange if strange.true_count else None

    def _apart(self, strange: pa.Array) -> ExtractedValues:
        """Read strange documents one by one and the others together."""
        rows = np.flatnonzero(strange)
        single = self._single(self.documents.take(pa.array(rows)))
        rest = self._some(pc.invert(strange))
        both = ExtractedValues.of([ExtractedValues(rows[single.rows], single.values, single.misfits), rest], self.kind)
        order = np.argsort(both.rows, kind="stable")
        return ExtractedValues(both.rows[order], both.values.take(pa.array(order)), both.misfits.take(pa.array(order)))

    def _halved(self, documents: pa.Array) -> ExtractedValues:
        """Read valid documents without line ends together, or where that fails in ever smaller parts."""
        together = self._together(documents)
        if together is not None:
            return together
        if len(documents) <= SINGLE_ROWS:
            return self._single(documents)
        half = len(documents) // 2
        return ExtractedValues.of(
            [self._halved(documents[:half]), self._halved(documents[half:]).moved(half)], self.kind
        )

    def _together(self, documents: pa.Array) -> ExtractedValues | None:
        """Return what Arrow's reader finds, None where it refuses the documents.

        They are members of objects, one a line: text that is empty, or more than one document, is refused or makes
        lines of its own, which are counted.
        """
        try:
            depths = shape(read_json(documents[0].as_py()), self.names)
            lines = pc.binary_join_element_wise(b'{"document":', documents, b"}\n", b"")
            _, offsets, data = lines.buffers()
            span = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
            text = data.slice(int(span[0]), int(span[-1] - span[0]))
            table = pa.json.read_json(
                pa.BufferReader(text),
                read_options=pa.json.ReadOptions(use_threads=False, block_size=text.size + 1),
                parse_options=pa.json.ParseOptions(
                    explicit_schema=_schema(self.names, depths, self.kind.parsed), unexpected_field_behavior="ignore"
                ),
            )
        except (pa.ArrowInvalid, ValueError):
            return None
        if table.num_rows != len(documents):
            return None
        column = table["document"].combine_chunks()
        rows, parsed = _flattened(column, np.arange(len(documents)), self.names, depths)
        values = self.kind.convert(parsed)
        if values is None:
            # Text is as it was written; a number that became infinite is not.
            return self._fitted(rows, parsed.to_pylist()) if self.kind.parsed == pa.string() else None
        return ExtractedValues(rows, values, pa.nulls(len(values), pa.string()))

    def _single(self, documents: pa.Array) -> ExtractedValues:
        rows: list[int] = []
        values: list[Any] = []
        for row, text in enumerate(documents.to_pylist()):
            try:
                document = read_json(text.replace(b"\n", b" "))
            except ValueError:
                continue
            found = list(reached(document, self.names))
            values += found
            rows += [row] * len(found)
        return self._fitted(np.array(rows, np.int64), values)

    def _fitted(self, rows: npt.NDArray[np.int64], values: list[Any]) -> ExtractedValues:
        fits = [self.kind.fit(value) for value in values]
        misfits = [_shown(value) if fit is None else None for value, fit in zip(values, fits, strict=True)]
        return ExtractedValues(rows, pa.array(fits, self.kind.type), pa.array(misfits, pa.string()))


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)[:MISFIT_CHARACTERS]
    return text.encode(errors="replace").decode()


def shape(document: Any, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return how deep in arrays a document has what each step of a path reaches, the document itself first."""
    depths = []
    for name in (*names, None):
        depth = 0
        while isinstance(document, list):
            depth += 1
            document = next((element for element in document if element is not None), None)
        depths.append(depth)
        document = document.get(name) if isinstance(document, dict) else None
    return tuple(depths)


def _schema(names: tuple[str, ...], depths: tuple[int, ...], leaf: pa.DataType) -> pa.Schema:
    kind = leaf
    for name, depth in zip((*names[::-1], "document"), depths[::-1], strict=True):
        for _ in range(depth):
            kind = pa.list_(kind)
        kind = pa.struct([(name, kind)])
    return pa.schema(list(kind))


def _flattened(
    column: pa.Array, rows: npt.NDArray[np.int64], names: tuple[str, ...], depths: tuple[int, ...]
) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return the values that a path reaches in a column of `_schema`, without nulls, and the rows that they are in."""
    for name, depth in zip((None, *names), depths, strict=True):
        if name is not None:
            column = pc.struct_field(column, name)
        for _ in range(depth):
            rows, column = rows[pc.list_parent_indices(column).to_numpy()], pc.list_flatten(column)
    valid = pc.is_valid(column)
    return rows[np.flatnonzero(valid)], column.drop_null()
