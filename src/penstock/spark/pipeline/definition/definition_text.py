"""The text of a pipeline's file, from a source and typed tables."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.client.feeds.collection_selection import qualify_name
from penstock.names import make_printable, quote_table
from penstock.spark.pipeline.definition.definition import RESERVED_NAMES
from penstock.spark.source.source_options import INFERRED
from penstock.spark.values.json_types import format_type, quote_name

MOST_SCHEMA = 16 * 1024
"""Characters of a schema in the file. A longer one becomes "infer"."""
_NAME_LENGTH = 60
"""Characters of a name, so that a number behind it fits too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTable:
    """A `[[table]]` of the file.

    Attributes:
        collection: the collection as `name` or `scope.name`.
        name: the name of the table.
        fields: the fields of the documents; none: the first merge infers them.
        key: the pattern of the keys.
        comments: sentences about the table.
    """

    collection: str
    name: str
    fields: pa.Schema
    key: str
    comments: tuple[str, ...] = ()


def choose_source_name(bucket: str) -> str:
    """Return a name for the source of a bucket."""
    name = _clean_name(bucket)
    return f"{name}_bucket" if name in RESERVED_NAMES else name


def choose_table_names(collections: Collection[str]) -> list[str]:
    """Return a name for the table of each collection: the default name as far as a file can declare it, each once.

    Args:
        collections: each as `name` or `scope.name`.
    """
    used: set[str] = set()
    names = []
    for collection in collections:
        first = name = _clean_name(quote_table(*qualify_name(collection)))
        number = 1
        while name.lower() in used:
            number += 1
            name = f"{first}_{number}"
        used.add(name.lower())
        names.append(name)
    return names


def _clean_name(text: str) -> str:
    """Return the characters of a text that the name of a source or of a table can have."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text).lstrip("_-")[:_NAME_LENGTH] or "unnamed"


def format_definition(
    lake: str, source: str, options: Mapping[str, str | Collection[str]], tables: Collection[DraftTable]
) -> str:
    """Return the text of a pipeline's file.

    Args:
        lake: the directory of the tables.
        source: the name of the source.
        options: the keys of the source.
        tables: its typed tables.
    """
    lines = [f"lake = {_quote(lake)}", "", f"[source.{source}]"]
    lines += [f"{name} = {_format_value(value)}" for name, value in options.items()]
    for table in tables:
        lines += ["", *(f"# {make_printable(each)}" for each in table.comments), "[[table]]"]
        lines += [
            f"{name} = {_quote(value)}" for name, value in (("collection", table.collection), ("name", table.name))
        ]
        lines += [f"schema = {_format_schema(table.fields)}", f"key = {_quote(table.key)}"]
    return "\n".join(lines) + "\n"


def _format_schema(fields: pa.Schema) -> str:
    """Return the DDL of fields with a line for each."""
    parts = [_escape(f"{quote_name(field.name)} {format_type(field.type)}") for field in fields]
    if not parts or sum(map(len, parts)) > MOST_SCHEMA:
        return _quote(INFERRED)
    return '"""\n' + "".join(f"  {part},\n" for part in parts).removesuffix(",\n") + '\n"""'


def _format_value(value: str | Collection[str]) -> str:
    return _quote(value) if isinstance(value, str) else f"[{', '.join(map(_quote, value))}]"


def _quote(text: str) -> str:
    return f'"{_escape(text)}"'


def _escape(text: str) -> str:
    """Return the inside of a basic string of TOML: its escapes are those of JSON, and one more."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")
