"""Misfit documents: documents with a value that its column cannot take, or that are no JSON object.

A document with fields that have no column is none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.names import escape_bytes
from penstock.spark.tables.misfits import UNKNOWN, MisfitFinder, RestCount
from penstock.spark.values.typed_documents import SAMPLE_ROWS
from penstock.wire.columns.schema import Event

Misfits = Literal["rest", "dead_letter", "fail"]
"""The fate of values that do not fit their column. They are in `_rest`, or their document is in another table, or the
run ends."""


def find_misfit_rows(finder: MisfitFinder, values: pa.BinaryArray) -> list[int]:
    """Return the numbers of the misfit documents among some documents, ascending.

    A parse counts all misfits, and names the first rows. So the documents are halved until all rows are named: where
    few documents do not fit, they are parsed about twice.

    Args:
        finder: knows the columns.
        values: the documents, null for none.
    """
    return sorted(_find_rows(finder, np.arange(len(values)), values))


def _find_rows(finder: MisfitFinder, rows: npt.NDArray[Any], values: pa.BinaryArray) -> Iterator[int]:
    parsed = finder.parse(values)
    found = {key: misfit for key, misfit in parsed.misfits.items() if key[1] != UNKNOWN}
    if not found:
        return
    if len(values) == 1 or all(misfit.count <= SAMPLE_ROWS for misfit in found.values()):
        yield from rows[sorted({row for misfit in found.values() for row in misfit.rows})].tolist()
        return
    # Without the documents that have nothing left over, the halves are small.
    is_left = pc.or_(parsed.rest.is_valid(), pc.invert(pc.fill_null(parsed.objects, True)))
    left = pc.indices_nonzero(is_left).to_numpy()
    for half in np.array_split(left, 2):
        if len(half):
            yield from _find_rows(finder, rows[half], values.take(pa.array(half)))


def describe_misfits(finder: MisfitFinder, values: pa.BinaryArray) -> Iterator[RestCount]:
    """Yield for each of some misfit documents a field that does not fit, and the reason."""
    for number in range(len(values)):
        one = values.slice(number, 1)
        found = {key: misfit for key, misfit in finder.parse(one).misfits.items() if key[1] != UNKNOWN}
        yield next(finder.count(one, dict([next(iter(found.items()))])))


def remove_misfits(changes: pa.Table, finder: MisfitFinder, misfits: Misfits, table: str) -> pa.Table:
    """Return changes without those that make misfit documents.

    Args:
        changes: the newest changes of documents, with key, event and value.
        finder: knows the columns.
        misfits: "rest" to leave all changes.
        table: the name of the table, for the error.

    Raises:
        UsageError: there is a misfit document, and `misfits` is "fail".
    """
    if misfits == "rest":
        return changes
    is_mutation = pc.equal(changes["event"], Event.MUTATION)
    values = pc.if_else(is_mutation, changes["value"], pa.scalar(None, pa.binary())).combine_chunks()
    rows = find_misfit_rows(finder, values)
    if rows and misfits == "fail":
        (count,) = describe_misfits(finder, values.slice(rows[0], 1))
        key = escape_bytes(changes["key"][rows[0]].as_py())
        place = f"field {count.field} of document {key}" if count.field else f"document {key}"
        expected = count.expected or "a JSON object without repeated names"
        raise UsageError(
            f"table {table}: {place} has a value that does not fit ({count.reason}: {count.found}), and misfits is"
            f" 'fail'; expected {expected}"
        )
    kept = np.ones(changes.num_rows, bool)
    kept[rows] = False
    return changes.filter(pa.array(kept))
