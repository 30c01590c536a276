"""The columns of a lake's Iceberg table, and their ids, by which readers find them in files of any age.

A column keeps its id as long as its new type holds every value of its old type. Otherwise, as from BIGINT to DOUBLE, a
column with a new id takes its name. So readers of past snapshots still find the values of then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.spark.lake.tables.data_files import number_fields

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Transaction
    from pyiceberg.types import IcebergType


def number_paths(schema: Schema) -> dict[str, int]:
    """Return the id of each field by its path, such as `lines.element.sku`."""
    from pyiceberg.schema import index_by_name

    return dict(index_by_name(schema))


def number_columns(schema: Schema, columns: pa.Schema) -> pa.Schema:
    """Return columns with the ids that the schema of a table gives them."""
    return number_fields(columns, number_paths(schema))


def change_columns(change: Transaction, columns: pa.Schema) -> None:
    """Give a table other columns in a transaction, which gives the same ids whenever it is repeated.

    Args:
        change: the transaction.
        columns: all columns of the table from now on, in their order.
    """
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    wanted = pyarrow_to_schema(number_fields(columns))
    known = {each.name: each.field_type for each in change.table_metadata.schema().fields}
    kept = {each.name for each in wanted.fields if each.name in known and holds_type(each.field_type, known[each.name])}
    with change.update_schema(allow_incompatible_changes=True) as update:
        for name in known.keys() - kept:
            update.delete_column(name)
    with change.update_schema() as update:
        update.union_by_name(wanted)
        names = [each.name for each in wanted.fields]
        for before, each in zip(["", *names], names, strict=False):
            if each not in kept:
                update.move_after(each, before) if before else update.move_first(each)


def holds_type(new: IcebergType, old: IcebergType) -> bool:
    """Return whether a type has all values of an older type, so that a column of Iceberg may change to it."""
    from pyiceberg.types import (
        DecimalType,
        DoubleType,
        FloatType,
        IntegerType,
        ListType,
        LongType,
        MapType,
        StructType,
    )

    if isinstance(old, StructType) and isinstance(new, StructType):
        fields = {each.name: each.field_type for each in new.fields}
        return all(each.name in fields and holds_type(fields[each.name], each.field_type) for each in old.fields)
    if isinstance(old, ListType) and isinstance(new, ListType):
        return holds_type(new.element_type, old.element_type)
    if isinstance(old, MapType) and isinstance(new, MapType):
        return new.key_type == old.key_type and holds_type(new.value_type, old.value_type)
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return new.scale == old.scale and new.precision >= old.precision
    return new == old or (type(old), type(new)) in {(IntegerType, LongType), (FloatType, DoubleType)}
