"""Compares the outputs of commands with --json with the schemas that `penstock schema` prints."""

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from penstock.cli.outputs.output_schemas import OUTPUTS, make_schema

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
_KEYWORDS = {
    *("$schema", "$defs", "$ref", "title", "description", "type", "enum", "anyOf", "pattern"),
    *("properties", "required", "additionalProperties", "items"),
}
"""The keywords that our schemas use, and that this module knows."""

_cached_schema = cache(make_schema)


def check_output(arguments: Sequence[Any], text: str) -> None:
    """Check all that a command has printed, if it was asked for JSON."""
    words = [str(each) for each in arguments]
    while words[:1] and words[0].startswith("--"):  # options before the command
        words = words[1 if words[0] == "--debug" else 2 :]
    if "--json" not in words or "--help" in words:
        return
    name = next(name for name in (" ".join(words[:2]), words[0]) if name in OUTPUTS)
    lines = text.splitlines()
    assert OUTPUTS[name].is_lines or len(lines) <= 1, f"{name} prints one object: {text}"
    for line in lines:
        check_object(name, json.loads(line))


def check_object(command: str, found: Any) -> None:
    """Check one object of a command."""
    schema = _cached_schema(command)
    faults = list_faults(found, schema, schema)
    assert not faults, f"penstock {command}: {found}: {faults}"


def list_faults(found: Any, schema: dict[str, Any], root: dict[str, Any], path: str = "$") -> list[str]:
    """Return the faults of a value. Fields that the schema does not declare are faults, unlike in JSON Schema."""
    assert schema.keys() <= _KEYWORDS, schema.keys() - _KEYWORDS
    if reference := schema.get("$ref"):
        return list_faults(found, root["$defs"][reference.rpartition("/")[2]], root, path)
    if choices := schema.get("anyOf"):
        faults = [list_faults(found, each, root, path) for each in choices]
        return [] if [] in faults else [fault for each in faults for fault in each]
    if "enum" in schema and found not in schema["enum"]:
        return [f"{path} is {found!r}, expected one of {schema['enum']}"]
    expected = schema.get("type")
    if expected is not None and (
        not isinstance(found, _TYPES[expected]) or (isinstance(found, bool) and expected in ("integer", "number"))
    ):
        return [f"{path} is {found!r}, expected {expected}"]
    if "pattern" in schema and not re.search(schema["pattern"], found):
        return [f"{path} is {found!r}, expected {schema['pattern']}"]
    if isinstance(found, list):
        return [
            fault
            for number, each in enumerate(found)
            for fault in list_faults(each, schema.get("items", {}), root, f"{path}[{number}]")
        ]
    return _list_member_faults(found, schema, root, path) if isinstance(found, dict) else []


def _list_member_faults(found: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], path: str) -> list[str]:
    declared = schema.get("properties")
    faults = [f"{path}.{name} is missing" for name in schema.get("required", ()) if name not in found]
    for name, each in found.items():
        if declared is not None and name not in declared:
            faults.append(f"{path}.{name} is not declared")
            continue
        inner = declared[name] if declared is not None else schema.get("additionalProperties", {})
        faults += list_faults(each, inner, root, f"{path}.{name}")
    return faults
