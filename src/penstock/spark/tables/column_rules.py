"""Column rules of a table: single fields with a name, a type and a form of their own, beside the fields of a schema.

An object with a field that has a rule keeps its other fields as a STRUCT. The parser has no such struct, so its fields
are parsed apart and joined. The struct is null where all of its fields are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.names import quote_column
from penstock.spark.tables.inference import add_fields
from penstock.spark.values.json_times import DATE, TIMESTAMP
from penstock.spark.values.json_types import EXPECTED, as_struct, format_type, from_ddl
from penstock.spark.values.typed_documents import ColumnRule, DocumentParser

Path = tuple[str, ...]
_TIMES = (TIMESTAMP, DATE)
FORMS = {"unix_s": _TIMES, "unix_ms": _TIMES, "unix_us": _TIMES, "json": (pa.string(),)}
"""Forms of a declaration with the types that have them."""
_DECLARATION = re.compile(r"(?is)(?P<column>.*?)(?:\s+FROM\s+'(?P<form>[^']*)')?\s*")
_EXPECTED = "expected [column] TYPE [FROM 'form'], such as 'DECIMAL(12,2)' or \"ordered_at TIMESTAMP FROM 'unix_ms'\""


def parse_rule(path: Path, text: str) -> ColumnRule:
    """Return the rule of a declaration.

    Args:
        path: the field.
        text: `[column] TYPE [FROM 'form']`. Without a column the name of the field is the name of the column.

    Raises:
        UsageError: the text is no declaration.
    """
    found = _DECLARATION.fullmatch(text)
    assert found is not None
    place = f"column of field {'.'.join(path)!r} is {text!r}"
    name, of = _parse_column(found["column"], place)
    if name is None:
        name = quote_column(path[-1])
    elif quote_column(name) != name:
        raise UsageError(f"{place}; expected letters, digits and underscores, and no column that Penstock adds")
    form = found["form"]
    if form is not None and form not in FORMS:
        raise UsageError(f"{place}, with the form {form!r}; expected one of {', '.join(FORMS)}")
    if form is not None and of not in FORMS[form]:
        types = " or ".join(map(format_type, FORMS[form]))
        raise UsageError(f"{place}, with {format_type(of)} FROM {form!r}; expected {types} with this form")
    return ColumnRule(name, of, path, form)


def _parse_column(text: str, place: str) -> tuple[str | None, pa.DataType]:
    for prefix in ("", "unnamed "):
        try:
            (field,) = from_ddl(prefix + text)
        except (UsageError, ValueError):
            continue
        return None if prefix else field.name, field.type
    raise UsageError(f"{place}; {_EXPECTED}, with one of the types {EXPECTED}")


def check_rules(rules: Sequence[ColumnRule], fields: pa.Schema) -> None:
    """Check that no two declarations are about one field.

    Args:
        rules: the rules.
        fields: the schema beside them.

    Raises:
        UsageError: a field has two rules or is inside the field of another rule, or the schema has it.
    """
    for number, rule in enumerate(rules):
        for other in rules[:number]:
            shorter = min(len(rule.path), len(other.path))
            if rule.path[:shorter] == other.path[:shorter]:
                raise UsageError(
                    f"columns has fields {_show(other)} and {_show(rule)}; expected no field twice, and none inside"
                    " another"
                )
        of: pa.DataType = pa.struct(list(fields))
        for depth, name in enumerate(rule.path):
            if not pa.types.is_struct(of):
                outer = ".".join(rule.path[:depth])
                raise UsageError(
                    f"columns has field {_show(rule)}, and {outer!r} is {format_type(of)} in schema; expected STRUCT"
                )
            at = of.get_field_index(name)
            if at < 0:
                break
            of = of.field(at).type
        else:
            raise UsageError(f"field {_show(rule)} is in columns and in schema, expected one of them")


def _show(rule: ColumnRule) -> str:
    return repr(".".join(rule.path))


def add_rules(fields: pa.Schema, rules: Iterable[ColumnRule]) -> pa.Schema:
    """Return the schema of documents: the fields, and those of rules in their places."""
    for rule in rules:
        of = rule.type
        for name in reversed(rule.path[1:]):
            of = pa.struct([(name, of)])
        fields = add_fields(fields, pa.schema([(rule.path[0], of)])).fields
    return fields


def remove_rules(fields: pa.Schema, rules: Sequence[ColumnRule]) -> pa.Schema:
    """Return inferred fields without those of rules, and without fields of another type where a rule has an object."""
    return pa.schema(list(_remove_fields(fields, (), rules)))


def _remove_fields(fields: Iterable[pa.Field], outer: Path, rules: Sequence[ColumnRule]) -> Iterator[pa.Field]:
    for field in fields:
        path = (*outer, field.name)
        if not _has_rule(path, rules):
            yield field
            continue
        is_object = pa.types.is_struct(field.type) and all(rule.path != path for rule in rules)
        kept = list(_remove_fields(field.type, path, rules)) if is_object else []
        if kept:
            yield pa.field(field.name, pa.struct(kept))


def _has_rule(path: Path, rules: Sequence[ColumnRule]) -> bool:
    """Return whether a field, or a field inside it, has a rule."""
    return any(rule.path[: len(path)] == path for rule in rules)


def parse_columns(
    values: pa.Array, rules: Sequence[ColumnRule], fields: pa.Schema
) -> tuple[list[pa.Array], pa.StringArray]:
    """Return the columns of documents, and the parts that do not fit.

    Args:
        values: documents, binary; null for none.
        rules: the first columns.
        fields: the columns after them.

    Returns:
        The columns; and the rest, in which a value that is not a JSON object stands as it is.
    """
    parsed = create_parser(rules, fields).parse(values)
    arrays = parsed.columns.columns
    joined = iter(arrays[len(rules) :])
    columns = [_join_parts(field, (), rules, joined) for field in fields]
    return [*arrays[: len(rules)], *columns], parsed.fill_rest(values)


def create_parser(rules: Sequence[ColumnRule], fields: pa.Schema) -> DocumentParser:
    """Return the parser of documents, with a column for each rule and then for each part of a field.

    Args:
        rules: the first columns.
        fields: the columns after them.
    """
    parts = [*rules, *(part for field in as_struct(fields) for part in _list_parts(field, (), rules))]
    numbered = [ColumnRule(str(number), part.type, part.path, part.form) for number, part in enumerate(parts)]
    return DocumentParser(numbered)


def _list_parts(field: pa.Field, outer: Path, rules: Sequence[ColumnRule]) -> Iterator[ColumnRule]:
    """Yield the rule of a field, or the rules of its fields if one of them has a rule of its own."""
    path = (*outer, field.name)
    if not _has_rule(path, rules):
        yield ColumnRule("", field.type, path)
        return
    for each in field.type:
        yield from _list_parts(each, path, rules)


def _join_parts(field: pa.Field, outer: Path, rules: Sequence[ColumnRule], parts: Iterator[pa.Array]) -> pa.Array:
    """Return the column of a field from the columns of `_list_parts`."""
    path = (*outer, field.name)
    if not _has_rule(path, rules):
        return next(parts)
    children = [_join_parts(each, path, rules, parts) for each in field.type]
    is_null = children[0].is_null()
    for child in children[1:]:
        is_null = pc.and_(is_null, child.is_null())
    return pa.StructArray.from_arrays(children, fields=list(field.type), mask=is_null)
