"""Shape changes: the differences between two declarations of a typed table, in words."""

from __future__ import annotations

import json

import pyarrow as pa

from penstock.spark.lake.current.misfit_shape import AnyShape
from penstock.spark.values.json_types import differences
from penstock.spark.values.typed_documents import ColumnRule

_COLUMNS = ("schema", "columns")
"""Keys of a shape whose changes are changes of columns."""


def list_shape_changes(before: AnyShape, after: AnyShape) -> list[str]:
    """Return the differences between two shapes of a table in words. None means that they are equal.

    Args:
        before: the shape of the table.
        after: the shape that it gets.
    """
    old, new = json.loads(before.to_json()), json.loads(after.to_json())
    if old == new:
        return []
    names = dict.fromkeys([*new, *old])
    settings = [
        f"{name} was {_show(old.get(name))} and is {_show(new.get(name))}"
        for name in names
        if name not in _COLUMNS and old.get(name) != new.get(name)
    ]
    rules = {rule.name: _describe_rule(rule) for rule in before.rules}
    moved = [
        f"{rule.name} was {rules[rule.name]} and is {_describe_rule(rule)}"
        for rule in after.rules
        if rules.get(rule.name, _describe_rule(rule)) != _describe_rule(rule)
    ]
    found = [*differences(*map(select_declared_columns, (before, after))), *moved, *settings]
    return found or ["the order of the columns, or of fields inside a column"]


def select_declared_columns(shape: AnyShape) -> pa.Schema:
    """Return the columns of a table without those that Penstock adds, whose names begin with an underscore."""
    return pa.schema([each for each in shape.columns if not each.name.startswith("_")])


def _describe_rule(rule: ColumnRule) -> str:
    form = "" if rule.form is None else f" FROM {rule.form!r}"
    return f"field {'.'.join(rule.path)!r}{form}"


def _show(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else repr(value)
