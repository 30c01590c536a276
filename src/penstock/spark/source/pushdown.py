"""What of Spark's filters a batch read takes over, and how that narrows what is asked of the bucket.

Whatever is taken runs in Arrow before rows reach Spark, so that nothing depends on how far a filter narrows. Narrowing
leaves out only what the filters leave out anyway: vbuckets, seqnos, and collections as the bucket has them now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as spark

from penstock.client.feeds.selection import KnownCollections, Selection, qualified
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.spark.source.offsets import VbucketRead, can_begin_at
from penstock.spark.source.shape import ColumnFilter, Operator
from penstock.wire.codec.constants import MAX_SEQNO

__all__ = ["Pushed", "narrowed", "push"]

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
_WITHOUT_OPERAND = (spark.IsNull, spark.IsNotNull)
_OF_TEXT = (spark.StringStartsWith, spark.StringEndsWith, spark.StringContains)

_NEGATIVE = 1 << 63
"""Rows show seqnos from here on as negative numbers, and a filter compares those."""

_INVERTED: dict[Operator, Operator] = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}


@dataclass(frozen=True)
class Pushed:
    """The filters that were taken, all of which must hold of a row."""

    filters: tuple[ColumnFilter, ...] = ()

    def vbuckets_of(self, asked: Sequence[int]) -> Sequence[int]:
        """Return those of the vbuckets that there can be rows of."""
        numbers = pa.array(asked, pa.int32())
        return _holding(self._on("vbucket"), {"vbucket": numbers}, numbers)

    @property
    def is_of_collections(self) -> bool:
        return bool(self._on("scope", "collection", "collection_id"))

    @cached_property
    def seqnos(self) -> tuple[int, int]:
        """The first and the last seqno that there can be rows of, of those below _NEGATIVE."""
        first, last = 0, MAX_SEQNO
        for each in self._on("seqno"):
            operator = _INVERTED.get(each.operator) if each.negated else each.operator
            if operator is None or (known := [seqno for seqno in each.operands if seqno is not None]) == []:
                continue
            if min(known) < 0:
                continue  # it stands for one of the others
            if operator in (">", ">=", "=", "<=>", "in"):
                first = max(first, min(known) + (operator == ">"))
            if operator in ("=", "<=>", "in"):
                last = min(last, max(known))
            if operator in ("<", "<="):
                last = min(last, max(known) - (operator == "<"))
        return first, last

    def selection(self, asked: Selection, known: KnownCollections) -> Selection:
        """Return the part of the bucket that there can be rows of. asked: the part that the options say.

        It is a whole scope where its own events count too; nothing is left out where those of more scopes do, nor where
        collections that are no more could count: those are not among what is known.
        """
        conditions = self._on("scope", "collection", "collection_id")
        if not any(_names_what_is_known(each, known) for each in conditions):
            return asked
        names = [name for name in known.collections if _is_in(name, asked)]
        ids = [known.collections[name] for name in names]
        columns = {
            "scope": pa.array([scope for scope, _ in names], pa.string()),
            "collection": pa.array([name for _, name in names], pa.string()),
            "collection_id": pa.array(ids, pa.int64()),
        }
        left = [names[at] for at in _holding(conditions, columns, pa.array(range(len(names)), pa.int32()))]
        scopes = self._scopes(conditions, asked, known)
        if len(left) == len(names) or not left or (asked.collections and scopes):
            return asked
        if not scopes:
            return Selection(collections=tuple(".".join(name) for name in left))
        return Selection(scopes[0]) if scopes == sorted({scope for scope, _ in left}) and len(scopes) == 1 else asked

    def _scopes(self, conditions: Sequence[ColumnFilter], asked: Selection, known: KnownCollections) -> list[str]:
        """Return the scopes whose own events can be among the rows."""
        scopes = sorted(scope for scope in known.scopes if not asked.scope or scope == asked.scope)
        nothing = pa.nulls(len(scopes))
        columns = {
            "scope": pa.array(scopes, pa.string()),
            "collection": nothing.cast(pa.string()),
            "collection_id": nothing.cast(pa.int64()),
        }
        return [scopes[at] for at in _holding(conditions, columns, pa.array(range(len(scopes)), pa.int32()))]

    def _on(self, *columns: str) -> list[ColumnFilter]:
        return [each for each in self.filters if each.column in columns]


def push(filters: Iterable[spark.Filter], schema: pa.Schema) -> tuple[Pushed, list[spark.Filter]]:
    """Return what is taken of Spark's filters, and those that are left to it. schema: that of the rows."""
    taken: list[ColumnFilter] = []
    left: list[spark.Filter] = []
    for each in filters:
        condition = _condition(each, schema)
        if condition is None:
            left.append(each)
        else:
            taken.append(condition)
    return Pushed(tuple(taken)), left


def narrowed(reads: Sequence[VbucketRead], pushed: Pushed, infos: Mapping[int, VbucketInfo]) -> list[VbucketRead]:
    """Return the reads without what lies in front of or behind the wanted seqnos; rollback rows stay."""
    first, last = pushed.seqnos
    found: list[VbucketRead] = []
    for read in reads:
        if read.end_seqno >= _NEGATIVE:
            found.append(read)
            continue
        end = max(read.start_seqno, min(read.end_seqno, last))
        start = min(max(read.start_seqno, first - 1), end)
        if start > read.start_seqno and (start == end or can_begin_at(start, infos[read.vbucket])):
            read = replace(read, start_seqno=start, purge_seqno=0)
        read = replace(read, end_seqno=max(end, read.start_seqno))
        if read.start_seqno < read.end_seqno or read.rollback is not None:
            found.append(read)
    return found


def _condition(given: spark.Filter, schema: pa.Schema) -> ColumnFilter | None:
    """Return a filter as data, None for one that is not taken: of a nested column, of an operand of another type."""
    if isinstance(given, spark.Not):
        inner = _condition(given.child, schema)
        return None if inner is None or inner.negated else replace(inner, negated=True)
    operator = _OPERATORS.get(type(given))
    path: tuple[str, ...] = getattr(given, "attribute", ())
    if operator is None or len(path) != 1 or path[0] not in schema.names:
        return None
    of_type = schema.field(path[0]).type
    if isinstance(given, _WITHOUT_OPERAND):
        return ColumnFilter(path[0], operator)
    value: Any = getattr(given, "value")  # noqa: B009 - of every class that is left
    operands = tuple(value) if isinstance(given, spark.In) else (value,)
    fits = _fits_text if isinstance(given, _OF_TEXT) else _fits
    return ColumnFilter(path[0], operator, operands) if all(fits(each, of_type) for each in operands) else None


def _fits(operand: Any, of_type: pa.DataType) -> bool:
    """Can a column of this type be compared with the operand as Spark does it?"""
    if operand is None:
        return pa.types.is_integer(of_type) or _fits("", of_type) or _fits(b"", of_type)
    if pa.types.is_integer(of_type):
        bound = 1 << (of_type.bit_width - 1)
        return type(operand) is int and -bound <= operand < bound
    return _fits_text(operand, of_type)


def _fits_text(operand: Any, of_type: pa.DataType) -> bool:
    return (pa.types.is_string(of_type) and type(operand) is str) or (
        pa.types.is_binary(of_type) and type(operand) is bytes
    )


def _holding(conditions: Sequence[ColumnFilter], columns: Mapping[str, pa.Array], values: pa.Array) -> list[int]:
    """Return those of the values for whose rows all conditions hold."""
    rows = pa.table({**columns, "": values})
    for each in conditions:
        rows = rows.filter(each.of(rows[each.column].combine_chunks()))
    found: list[int] = rows[""].to_pylist()
    return found


def _names_what_is_known(condition: ColumnFilter, known: KnownCollections) -> bool:
    """Does a condition name what it wants, and not by the id of a collection that is no more?"""
    if condition.negated or condition.operator not in ("=", "<=>", "in"):
        return False
    return condition.column != "collection_id" or {*condition.operands} <= {*known.collections.values()}


def _is_in(name: tuple[str, str], asked: Selection) -> bool:
    if asked.collections:
        return name in [qualified(each, asked.scope) for each in asked.collections]
    return not asked.scope or name[0] == asked.scope
