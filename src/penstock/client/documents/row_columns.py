"""The columns of a table in the form that requests need, and the collections of its rows. No I/O."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.documents.document import LONGEST_DURATION
from penstock.client.documents.json_text import encode_json, is_nested
from penstock.client.documents.write_requests import Fault, WriteRows
from penstock.wire.codec.constants import LONGEST_RELATIVE
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.collection_names import DEFAULT_NAME
from penstock.wire.columns.schema import Event

Numbers = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]

_JSON = np.uint64(Datatype.JSON)


class TargetCollection(NamedTuple):
    """The names of a collection that rows are written to.

    Attributes:
        scope: the name of the scope.
        name: the name of the collection.
    """

    scope: str
    name: str


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """Requests of some rows, without the collections of their keys.

    Attributes:
        rows: the requests.
        sent_rows: for each request the position of its row in the table. The other rows have no change of a document.
        names: the collections.
        collections: for each request the position of its collection in `names`.
    """

    rows: WriteRows
    sent_rows: Numbers
    names: list[TargetCollection]
    collections: Numbers

    def add_prefixes(self, found: Sequence[bytes | Fault]) -> WriteRows:
        """Return the requests with the collections of their keys.

        Args:
            found: for each collection the prefix of its keys, or the reason why there is none.
        """
        if len(found) == 1 and isinstance(found[0], bytes):
            return replace(self.rows, prefixes=found[0])
        faults = {
            place: fault
            for number, fault in enumerate(found)
            if isinstance(fault, Fault)
            for place in np.flatnonzero(self.collections == number).tolist()
        }
        prefixes = pa.array([b"" if isinstance(each, Fault) else each for each in found], pa.binary())
        prefixes = prefixes.take(pa.array(self.collections)) if len(found) else b""
        return replace(self.rows, prefixes=prefixes, faults={**self.rows.faults, **faults})


@dataclass(slots=True)
class RowColumns:
    """The columns of a table, in the form that requests need.

    Attributes:
        table: the rows.
        faults: reasons why rows cannot be sent, by position.
    """

    table: pa.Table
    faults: dict[int, Fault] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def has_values(self, name: str) -> bool:
        """Return whether the column exists and has a value."""
        return name in self.table.column_names and self.table[name].null_count < len(self)

    def get_column(self, name: str) -> pa.Array:
        """Return a column as one array."""
        column = self.table[name]
        if column.num_chunks == 1:
            return column.chunk(0)
        return column.combine_chunks() if len(self) else pa.array([], column.type)

    def read_keys(self) -> pa.Array:
        """Return the keys as binary. A null is a fault."""
        return self._to_binary("key", self.get_column("key"))

    def read_values(self, stores: Bools | None = None) -> pa.Array:
        """Return the values as binary.

        Args:
            stores: which rows store a document; None for all. A null in such a row is a fault; other rows have empty
                values.
        """
        column = self.get_column("value")
        column = encode_json(column) if is_nested(column.type) else column
        if stores is None:
            return self._to_binary("value", column)
        if not stores.all():
            column = pc.if_else(pa.array(stores), column.cast(pa.binary()), b"")
        return self._to_binary("value", column)

    def _to_binary(self, name: str, column: pa.Array) -> pa.Array:
        if column.null_count:
            for place in np.flatnonzero(np.asarray(column.is_null())).tolist():
                self.faults.setdefault(place, Fault(Status.EINVAL, f"no {name}"))
        column = column.cast(pa.binary())
        column = column.fill_null(b"") if column.null_count else column
        return pa.concat_arrays([column]) if column.offset else column

    def read_numbers(self, name: str, bits: int) -> Numbers:
        """Return a column of whole numbers, 0 for a null or without the column.

        Args:
            name: the column. Timestamps become seconds since 1970.
            bits: the size of the number on the wire. A number that does not fit is a fault.
        """
        if not self.has_values(name):
            return np.zeros(len(self), np.uint64)
        column = self.get_column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("s"), safe=False)
        column = column.cast(pa.int64()) if column.type != pa.int64() else column
        found: Numbers = (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)
        if bits == 64:
            return found.view(np.uint64)
        bad = found >> bits != 0
        for place in np.flatnonzero(bad).tolist():
            text = f"{name} {found[place]}, expected 0 to {2**bits - 1}"
            self.faults.setdefault(place, Fault(Status.EINVAL, text))
        return np.where(bad, 0, found).view(np.uint64)

    def read_expiries(self) -> Numbers:
        """Return the column `expiry` as requests carry it, by the rules of `encode_expiry`; 0 for a null.

        A whole number is seconds from now or Unix time, a timestamp the time of the expiry.
        """
        numbers = self.read_numbers("expiry", 32)
        if self.has_values("expiry") and pa.types.is_timestamp(self.table["expiry"].type):
            is_given = np.asarray(self.get_column("expiry").is_valid())
            return np.where(is_given, np.maximum(numbers, np.uint64(LONGEST_RELATIVE + 1)), np.uint64(0))
        is_long = (numbers > LONGEST_RELATIVE) & (numbers <= LONGEST_DURATION)
        return np.where(is_long, numbers + np.uint64(time.time()), numbers) if is_long.any() else numbers

    def read_datatypes(self) -> Numbers:
        """Return the datatypes of the values as far as they are known: JSON or 0."""
        if is_nested(self.table["value"].type):
            return np.full(len(self), _JSON)
        return self.read_numbers("datatype", 8) & _JSON

    def find_removals(self) -> Bools:
        """Return which rows remove their document."""
        if not self.has_values("event"):
            return np.zeros(len(self), bool)
        return ~np.asarray(pc.equal(self.get_column("event"), str(Event.MUTATION)).fill_null(False))

    def read_attributes(self) -> list[list[tuple[str, Any]] | None]:
        """Return the extended attributes of each row; an empty list if no row has any."""
        if not self.has_values("xattrs"):
            return []
        column = self.get_column("xattrs")
        found: list[list[tuple[str, Any]] | None] = column.to_pylist() if len(column.keys) else []
        return found


def encode_attribute(value: str | bytes | None) -> bytes:
    """Return the value of an extended attribute as bytes; empty for None."""
    return value.encode() if isinstance(value, str) else value or b""


def find_collections(
    source: RowColumns, scope: str | None, collection: str | None
) -> tuple[list[TargetCollection], Numbers]:
    """Return the collections of the rows, and for each row the position of its collection."""
    if scope is not None or collection is not None or not source.has_values("collection"):
        return [TargetCollection(scope or DEFAULT_NAME, collection or DEFAULT_NAME)], np.zeros(len(source), np.int64)
    names = source.get_column("collection").fill_null(DEFAULT_NAME)
    scopes = source.get_column("scope").fill_null(DEFAULT_NAME) if source.has_values("scope") else None
    if scopes is None:
        scopes = pa.repeat(pa.scalar(DEFAULT_NAME), len(source))
    encoded = pc.binary_join_element_wise(scopes, names, "\0").dictionary_encode()
    found = [TargetCollection(*each.split("\0")) for each in encoded.dictionary.to_pylist()]
    return found, encoded.indices.to_numpy()
