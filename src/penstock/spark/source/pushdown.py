"""Spark's filters that a batch read applies itself, and the smaller requests that they allow.

Applied filters run in Arrow before rows reach Spark. The result is that of a read without filters. So requests leave
out only vbuckets, seqnos and present collections whose rows the filters drop in any case. The other rows must stay as
they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as spark

from penstock.client.feeds.collection_selection import CollectionSelection, KnownCollections, qualify_name
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.spark.source.batch_planning import can_start_at
from penstock.spark.source.offsets import (
    VbucketRead,
)
from penstock.spark.source.shape import ColumnFilter, Operator
from penstock.wire.codec.constants import MAX_SEQNO

_OPERATORS: dict[type[spark.Filter], Operator] = {
    spark.EqualTo: "=",
    spark.EqualNullSafe: "<=>",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
    spark.In: "in",
    spark.IsNull: "is null",
    spark.IsNotNull: "is not null",
    spark.StringStartsWith: "starts with",
    spark.StringEndsWith: "ends with",
    spark.StringContains: "contains",
}
_NULL_FILTERS = (spark.IsNull, spark.IsNotNull)
_TEXT_FILTERS = (spark.StringStartsWith, spark.StringEndsWith, spark.StringContains)

_FIRST_NEGATIVE = 1 << 63
"""Rows show seqnos from here on as negative numbers, and filters compare those numbers."""

_INVERTED: dict[Operator, Operator] = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}


@dataclass(frozen=True)
class PushedFilters:
    """The filters that a read applies; all must hold for a row.

    Attributes:
        filters: the conditions.
    """

    filters: tuple[ColumnFilter, ...] = ()

    def select_vbuckets(self, asked: Sequence[int]) -> Sequence[int]:
        """Return the vbuckets that can have matching rows."""
        numbers = pa.array(asked, pa.int32())
        return _select_matching(self._list_filters("vbucket"), {"vbucket": numbers}, numbers)

    @property
    def has_collection_filters(self) -> bool:
        """Whether a filter has a column of the collection."""
        return bool(self._list_filters("scope", "collection", "collection_id"))

    @cached_property
    def seqno_range(self) -> tuple[int, int]:
        """The first and the last seqno of matching rows, among seqnos below _FIRST_NEGATIVE."""
        first, last = 0, MAX_SEQNO
        for each in self._list_filters("seqno"):
            operator = _INVERTED.get(each.operator) if each.negated else each.operator
            if operator is None or (known := [seqno for seqno in each.operands if seqno is not None]) == []:
                continue
            if min(known) < 0:
                continue  # negative numbers stand for seqnos from _FIRST_NEGATIVE on
            if operator in (">", ">=", "=", "<=>", "in"):
                first = max(first, min(known) + (operator == ">"))
            if operator in ("=", "<=>", "in"):
                last = min(last, max(known))
            if operator in ("<", "<="):
                last = min(last, max(known) - (operator == "<"))
        return first, last

    def narrow_selection(self, asked: CollectionSelection, known: KnownCollections) -> CollectionSelection:
        """Return the part of the bucket that can have matching rows.

        The result is a whole scope if that scope's own events can match. It is `asked` if events of several scopes can
        match, or if rows of deleted collections can match: `known` does not have those.

        Args:
            asked: the selection of the options.
            known: the present collections of the bucket.
        """
        conditions = self._list_filters("scope", "collection", "collection_id")
        if not any(_names_known_collections(each, known) for each in conditions):
            return asked
        names = [name for name in known.collections if _is_selected(name, asked)]
        ids = [known.collections[name] for name in names]
        columns = {
            "scope": pa.array([scope for scope, _ in names], pa.string()),
            "collection": pa.array([name for _, name in names], pa.string()),
            "collection_id": pa.array(ids, pa.int64()),
        }
        left = [names[at] for at in _select_matching(conditions, columns, pa.array(range(len(names)), pa.int32()))]
        scopes = self._find_scopes(conditions, asked, known)
        if len(left) == len(names) or not left or (asked.collections and scopes):
            return asked
        if not scopes:
            return CollectionSelection(collections=tuple(".".join(name) for name in left))
        return (
            CollectionSelection(scopes[0])
            if scopes == sorted({scope for scope, _ in left}) and len(scopes) == 1
            else asked
        )

    def _find_scopes(
        self, conditions: Sequence[ColumnFilter], asked: CollectionSelection, known: KnownCollections
    ) -> list[str]:
        """Return the scopes whose own events can match."""
        scopes = sorted(scope for scope in known.scopes if not asked.scope or scope == asked.scope)
        nothing = pa.nulls(len(scopes))
        columns = {
            "scope": pa.array(scopes, pa.string()),
            "collection": nothing.cast(pa.string()),
            "collection_id": nothing.cast(pa.int64()),
        }
        return [scopes[at] for at in _select_matching(conditions, columns, pa.array(range(len(scopes)), pa.int32()))]

    def _list_filters(self, *columns: str) -> list[ColumnFilter]:
        return [each for each in self.filters if each.column in columns]


def push_filters(filters: Iterable[spark.Filter], schema: pa.Schema) -> tuple[PushedFilters, list[spark.Filter]]:
    """Return the filters that the read applies, and those that Spark must apply.

    Args:
        filters: Spark's filters.
        schema: the schema of the rows.
    """
    taken: list[ColumnFilter] = []
    left: list[spark.Filter] = []
    for each in filters:
        condition = _make_filter(each, schema)
        if condition is None:
            left.append(each)
        else:
            taken.append(condition)
    return PushedFilters(tuple(taken)), left


def narrow_reads(
    reads: Sequence[VbucketRead], pushed: PushedFilters, infos: Mapping[int, VbucketInfo], *, shows_snapshots: bool
) -> list[VbucketRead]:
    """Return the reads that can have matching rows, without seqnos before the range of the filters.

    A stream never ends earlier: it would have versions that a later change replaces before the planned end, and other
    snapshots. A later start changes nothing but the snapshots. Rollback rows stay.

    Args:
        reads: the reads of the batch.
        pushed: the filters.
        infos: the state of the vbuckets that the reads were planned with.
        shows_snapshots: whether rows describe their snapshots.
    """
    narrowed = (_narrow_read(read, pushed, infos[read.vbucket], shows_snapshots=shows_snapshots) for read in reads)
    return [read for read in narrowed if read.start_seqno < read.end_seqno or read.rollback is not None]


def _narrow_read(read: VbucketRead, pushed: PushedFilters, info: VbucketInfo, *, shows_snapshots: bool) -> VbucketRead:
    first, last = pushed.seqno_range
    if read.end_seqno >= _FIRST_NEGATIVE:
        return read
    if max(first, read.start_seqno + 1) > min(last, read.end_seqno):
        return replace(read, end_seqno=read.start_seqno)
    if first - 1 <= read.start_seqno or shows_snapshots or not can_start_at(first - 1, info):
        return read
    return replace(read, start_seqno=first - 1, purge_seqno=0)


def _make_filter(given: spark.Filter, schema: pa.Schema) -> ColumnFilter | None:
    """Return a filter as data; None if Spark must apply it: for a nested column, or an operand of another type."""
    if isinstance(given, spark.Not):
        inner = _make_filter(given.child, schema)
        return None if inner is None or inner.negated else replace(inner, negated=True)
    operator = _OPERATORS.get(type(given))
    path: tuple[str, ...] = getattr(given, "attribute", ())
    if operator is None or len(path) != 1 or path[0] not in schema.names:
        return None
    of_type = schema.field(path[0]).type
    if isinstance(given, _NULL_FILTERS):
        return ColumnFilter(path[0], operator)
    value: Any = getattr(given, "value")  # noqa: B009 - all other classes have it
    operands = tuple(value) if isinstance(given, spark.In) else (value,)
    fits = _fits_text if isinstance(given, _TEXT_FILTERS) else _fits_type
    return ColumnFilter(path[0], operator, operands) if all(fits(each, of_type) for each in operands) else None


def _fits_type(operand: Any, of_type: pa.DataType) -> bool:
    """Return whether Arrow compares a column of this type with the operand as Spark does."""
    if operand is None:
        return pa.types.is_integer(of_type) or _fits_type("", of_type) or _fits_type(b"", of_type)
    if pa.types.is_integer(of_type):
        bound = 1 << (of_type.bit_width - 1)
        return type(operand) is int and -bound <= operand < bound
    return _fits_text(operand, of_type)


def _fits_text(operand: Any, of_type: pa.DataType) -> bool:
    return (pa.types.is_string(of_type) and type(operand) is str) or (
        pa.types.is_binary(of_type) and type(operand) is bytes
    )


def _select_matching(
    conditions: Sequence[ColumnFilter], columns: Mapping[str, pa.Array], values: pa.Array
) -> list[int]:
    """Return the values for whose rows all conditions hold."""
    rows = pa.table({**columns, "": values})
    for each in conditions:
        rows = rows.filter(each.evaluate(rows[each.column].combine_chunks()))
    found: list[int] = rows[""].to_pylist()
    return found


def _names_known_collections(condition: ColumnFilter, known: KnownCollections) -> bool:
    """Return whether a condition names its collections, and all their ids are present."""
    if condition.negated or condition.operator not in ("=", "<=>", "in"):
        return False
    return condition.column != "collection_id" or {*condition.operands} <= {*known.collections.values()}


def _is_selected(name: tuple[str, str], asked: CollectionSelection) -> bool:
    if asked.collections:
        return name in [qualify_name(each, asked.scope) for each in asked.collections]
    return not asked.scope or name[0] == asked.scope
