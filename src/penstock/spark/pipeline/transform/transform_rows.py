"""The rows of a transform: its function gets the mutations of a batch, and may change their values alone.

Tables are exact because each change keeps its place: vbucket, seqno, key and the other columns. So the result is
compared with the rows that the function got. All other events, such as deletions and rollbacks, pass by.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import TransformFailed, UsageError
from penstock.spark.pipeline.transform.transform import Transform
from penstock.wire.columns.schema import CHANGE_SCHEMA, Event

VALUE_COLUMNS = ("value", "xattrs", "datatype")
"""The columns that a transform may change. A document whose value becomes null is written as deleted."""

CHANGED_COLUMNS = ("event", *VALUE_COLUMNS)
"""The columns in which the result may differ."""

_MAX_KEY = 100
"""Octets of a key in an error."""


def check_transform(transform: Transform) -> None:
    """Call the function with a batch without rows.

    Args:
        transform: the transform.

    Raises:
        UsageError: the function raised an exception, or did not return a batch with the same columns.
    """
    empty = pa.RecordBatch.from_pylist([], CHANGE_SCHEMA)
    try:
        _match_columns(transform, transform.load()(empty))
    except TransformFailed as error:
        raise UsageError(f"{error} (checked with a batch without rows)") from None
    except Exception as error:  # noqa: BLE001 - the function is the user's
        raise UsageError(
            f"the transform {transform.name} raised for a batch without rows: {transform.describe_exception(error)}"
        ) from None


def transform_batch(transform: Transform, changes: pa.RecordBatch) -> pa.RecordBatch:
    """Return the changes after a transform.

    Args:
        transform: the transform.
        changes: rows of CHANGE_SCHEMA.

    Returns:
        The same rows, in their order. VALUE_COLUMNS of mutations may differ; a mutation whose value became null is a
        deletion.

    Raises:
        TransformFailed: the function raised an exception, or changed something else.
    """
    is_document = pc.equal(changes["event"], Event.MUTATION)
    documents = changes.filter(is_document)
    if not documents.num_rows:
        return changes
    try:
        returned = transform.load()(documents)
    except Exception as error:
        first, last = (_describe_row(documents, at) for at in (0, documents.num_rows - 1))
        raise TransformFailed(
            f"the transform {transform.name} raised {transform.describe_exception(error)},"
            f" for {documents.num_rows} changes from {first} to {last}"
        ) from error
    changed = _match_columns(transform, returned)
    _check_rows(transform, documents, changed)
    places = np.flatnonzero(is_document)
    order = np.arange(changes.num_rows)
    order[places] = changes.num_rows + np.arange(len(places))
    replaced = _delete_documents(changed)
    both = {name: pa.concat_arrays([changes[name], replaced[name]]) for name in CHANGED_COLUMNS}
    arrays = [both[name].take(pa.array(order)) if name in both else changes[name] for name in CHANGE_SCHEMA.names]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)


def _match_columns(transform: Transform, returned: object) -> pa.RecordBatch:
    """Return the result of a function in the columns of a change.

    Raises:
        TransformFailed: it is no batch, or a column differs.
    """
    if not isinstance(returned, pa.RecordBatch | pa.Table):
        raise TransformFailed(
            f"the transform {transform.name} returned {type(returned).__name__}, expected a RecordBatch or Table of"
            " pyarrow"
        )
    if sorted(returned.column_names) != sorted(CHANGE_SCHEMA.names):
        missing = [name for name in CHANGE_SCHEMA.names if name not in returned.column_names]
        more = [name for name in returned.column_names if name not in CHANGE_SCHEMA.names]
        words = [f"without {', '.join(missing)}"] * bool(missing) + [f"with the new {', '.join(more)}"] * bool(more)
        raise TransformFailed(
            f"the transform {transform.name} returned columns {' and '.join(words) or 'with a name twice'},"
            " expected the columns that it got"
        )
    arrays = []
    for field in CHANGE_SCHEMA:
        column = returned[field.name]
        try:
            cast = column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            raise TransformFailed(
                f"the transform {transform.name} returned the column {field.name} as {column.type},"
                f" expected {field.type}"
            ) from None
        arrays.append(cast.combine_chunks() if isinstance(cast, pa.ChunkedArray) else cast)
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)


def _check_rows(transform: Transform, documents: pa.RecordBatch, changed: pa.RecordBatch) -> None:
    """Check that rows and their order are the same, and columns that are not VALUE_COLUMNS.

    Raises:
        TransformFailed: something else differs; the error names the first row.
    """
    if changed.num_rows != documents.num_rows:
        raise TransformFailed(
            f"the transform {transform.name} returned {changed.num_rows} rows for {documents.num_rows} changes from"
            f" {_describe_row(documents, 0)}; expected the same rows, with the value null to delete a document"
        )
    for name in CHANGE_SCHEMA.names:
        before, after = documents[name], changed[name]
        if name in VALUE_COLUMNS or before.equals(after):
            continue
        same = pc.fill_null(pc.equal(before, after), pc.and_(before.is_null(), after.is_null()))
        at = int(np.flatnonzero(~np.asarray(same))[0])
        raise TransformFailed(
            f"the transform {transform.name} changed {name} of {_describe_row(documents, at)} from"
            f" {before[at].as_py()!r} to {after[at].as_py()!r}; it may change {', '.join(VALUE_COLUMNS)} alone,"
            " and not the order of rows"
        )


def _delete_documents(changed: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return CHANGED_COLUMNS of mutations, as deletions where the value is null."""
    gone = changed["value"].is_null()
    datatype = changed["datatype"]
    return {
        "event": pc.if_else(gone, pa.scalar(str(Event.DELETION)), changed["event"]),
        "value": changed["value"],
        "xattrs": pc.if_else(gone, pa.scalar(None, changed["xattrs"].type), changed["xattrs"]),
        "datatype": pc.if_else(pc.and_(gone, datatype.is_valid()), pa.scalar(0, datatype.type), datatype),
    }


def _describe_row(documents: pa.RecordBatch, at: int) -> str:
    vbucket, seqno, key = (documents[name][at].as_py() for name in ("vbucket", "seqno", "key"))
    return f"key {(key or b'')[:_MAX_KEY]!r} (vbucket {vbucket}, seqno {seqno})"
