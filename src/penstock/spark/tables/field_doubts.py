"""Doubts about the inferred types of fields: sentences for the author of a typed table's declaration."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.names import format_count, make_printable
from penstock.spark.tables.inference import MOST_FIELDS, FieldValues
from penstock.spark.values.json_times import fit_date, fit_timestamp
from penstock.spark.values.json_types import format_type, quote_name

MOST_DOUBTS = 100
"""Sentences about one table."""
_NO_CHILDREN = ("[]", "``", '"', "\\")
"""Parts of the places of arrays that `children` cannot name: those within arrays, and those with odd names."""
RARE = 100
"""A field is rare if fewer than one of so many objects has a value."""


def list_doubts(documents: FieldValues) -> list[str]:
    """Return a sentence for each field whose inferred type may not be the best one.

    Args:
        documents: the fields of some documents.
    """
    found = [*_doubt_fields(documents, "")]
    left = len(found) - MOST_DOUBTS
    return found if left <= 0 else [*found[:MOST_DOUBTS], f"{left:,} more doubts about fields"]


def _doubt_fields(objects: FieldValues, path: str) -> Iterator[str]:
    if (left := len(objects.fields) - MOST_FIELDS) > 0:
        yield f"{path or 'the documents'}: {left:,} more fields; schema has the {MOST_FIELDS} most frequent ones"
    count = objects.counts["object"]
    for name, values in objects.fields.items():
        place = f"{path}.{_format_name(name)}" if path else _format_name(name)
        having = values.counts.total()
        if having * RARE < count and values.choose_type() is not None:
            yield f"{place}: in {having:,} of {count:,} {'objects' if path else 'documents'}"
        yield from _doubt_values(values, place)


def _doubt_values(values: FieldValues, place: str) -> Iterator[str]:
    """Yield the doubts about the values of a field, or about the elements of its arrays."""
    counts = {kind: count for kind, count in values.count_types().items() if count}
    chosen = values.choose_type()
    if chosen is None:
        yield f"{place}: not in schema, because it has only nulls, empty objects or empty arrays"
        return
    if len(counts) > 1:
        parts = [format_count(number, kind) for kind, number in sorted(counts.items(), key=lambda each: -each[1])]
        yield f"{place}: {', '.join(parts)}; values that do not fit are in _rest"
    kind = max(counts, key=lambda each: counts[each])
    if kind == "number" and values.counts["wide"]:
        yield f"{place}: {format_count(values.counts['wide'], 'number')} beyond 64 bits, so {format_type(chosen)}"
    elif kind == "text" and (hint := _find_time_type(values.texts)) is not None:
        yield f"{place}: the texts look like times; {hint} may be better than STRING"
    elif kind == "object":
        yield from _doubt_fields(values, place)
    elif kind == "array" and values.elements is not None:
        if pa.types.is_struct(chosen.value_type) and not any(part in place for part in _NO_CHILDREN):
            yield f'{place}: array of objects; children = ["{place}"] makes it a table'
        yield from _doubt_values(values.elements, f"{place}[]")


def _find_time_type(texts: list[str]) -> str | None:
    """Return the type of texts that are all times, None for others. Digits alone are more often numbers."""
    if any(text.isdigit() for text in texts):
        return None
    if all(fit_date(text) is not None for text in texts):
        return "DATE"
    return "TIMESTAMP" if all(fit_timestamp(text) is not None for text in texts) else None


def _format_name(name: str) -> str:
    return make_printable(quote_name(name))
