"""Selects documents by their JSON, with a filter expression.

Regular expressions run in RE2, whose time is linear in the length of the text.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.filters.filter_syntax import (
    Comparison,
    FieldTest,
    Junction,
    Negation,
    Node,
    PathSteps,
    RegexTest,
    parse_filter,
)
from penstock.errors import UsageError

__all__ = ["ValueFilter", "check_regex"]

Bools = npt.NDArray[np.bool_]

_MISSING: Final = object()
"""The value of a field that a document does not have."""

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def check_regex(pattern: str) -> str:
    """Return a regular expression. Raises UsageError if RE2 does not accept it."""
    try:
        pc.match_substring_regex(pa.array([b""]), pattern)
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise UsageError(f"regular expression {pattern!r}: {error}, expected the syntax of RE2") from None
    return pattern


class ValueFilter:
    """A filter expression over JSON documents.

    Args:
        text: the expression.

    Raises:
        UsageError: the expression is invalid.
    """

    def __init__(self, text: str) -> None:
        self._node = parse_filter(text)
        _check_patterns(self._node)

    def match_values(self, values: Sequence[bytes | None]) -> Bools:
        """Return for each value whether it is JSON and the expression is true."""
        documents = [_MISSING if value is None else _decode(value) for value in values]
        is_json = np.fromiter((document is not _MISSING for document in documents), bool, len(documents))
        return is_json & _evaluate(self._node, documents)


_DECODER = msgspec.json.Decoder()


def _decode(value: bytes) -> Any:
    try:
        return _DECODER.decode(value)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return _MISSING


def _check_patterns(node: Node) -> None:
    match node:
        case RegexTest():
            check_regex(node.pattern)
        case Negation():
            _check_patterns(node.part)
        case Junction():
            for part in node.parts:
                _check_patterns(part)


def _evaluate(node: Node, documents: Sequence[Any]) -> Bools:
    match node:
        case Junction():
            combine = np.logical_and if node.is_and else np.logical_or
            found: Bools = combine.reduce([_evaluate(part, documents) for part in node.parts])
            return found
        case Negation():
            return ~_evaluate(node.part, documents)
        case RegexTest():
            texts = [_to_text(_find_field(document, node.path)) for document in documents]
            matched = pc.match_substring_regex(pa.array(texts, pa.string()), node.pattern)
            return np.asarray(matched.fill_null(False))
        case FieldTest():
            test = _STATES[node.state]
        case Comparison():
            test = _make_comparison(node)
    return np.fromiter((test(_find_field(document, node.path)) for document in documents), bool, len(documents))


def _find_field(document: Any, path: PathSteps) -> Any:
    for step in path:
        try:
            fits = isinstance(document, dict if isinstance(step, str) else list)
            document = document[step] if fits else _MISSING
        except LookupError:
            return _MISSING
    return document


_STATES: dict[str, Callable[[Any], bool]] = {
    "EXISTS": lambda found: found is not _MISSING,
    "NULL": lambda found: found is None,
    "MISSING": lambda found: found is _MISSING,
}


def _make_comparison(node: Comparison) -> Callable[[Any], bool]:
    """Return the test of a field's value. Values of another type than the literal's make every comparison false."""
    compare, literal, kind = _COMPARE[node.operator], node.literal, _get_kind(node.literal)
    return lambda found: _get_kind(found) is kind and compare(found, literal)


def _get_kind(value: Any) -> type | None:
    """Return the JSON type of a value; None for null, objects, arrays and missing fields."""
    if isinstance(value, bool):
        return bool
    if isinstance(value, int | float):
        return float
    return str if isinstance(value, str) else None


def _to_text(value: Any) -> str | None:
    """Return a string that Arrow accepts; None for other values, and for halves of surrogate pairs."""
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value
