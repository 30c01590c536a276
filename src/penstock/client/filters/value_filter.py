"""Selects documents by their JSON and their metadata, with a filter expression.

Regular expressions run in RE2, whose time is linear in the length of the text.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.filters.filter_syntax import (
    Comparison,
    FieldTest,
    Junction,
    MetaField,
    Negation,
    Node,
    PathSteps,
    RegexTest,
    list_tests,
    parse_filter,
)
from penstock.errors import UsageError

__all__ = ["FilterDocument", "ValueFilter", "check_regex"]

Bools = npt.NDArray[np.bool_]

_MISSING: Final = object()
"""The value of a field that a document does not have."""


class FilterDocument(NamedTuple):
    """The parts of a document that an expression may read.

    Attributes:
        value: the value, without extended attributes; None without one.
        key: the key.
        expiry: the expiry, in seconds since 1970; 0: never.
        xattrs: name -> JSON of the extended attributes.
    """

    value: bytes | None
    key: bytes = b""
    expiry: int = 0
    xattrs: Sequence[tuple[str, bytes]] = ()


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
    """A filter expression over documents.

    Args:
        text: the expression.

    Attributes:
        fields: the metadata that the expression reads.
        reads_values: whether it reads fields of values. Without values it matches documents that are not JSON, too.

    Raises:
        UsageError: the expression is invalid.
    """

    def __init__(self, text: str) -> None:
        self._node = parse_filter(text)
        tests = [*list_tests(self._node)]
        for test in tests:
            if isinstance(test, RegexTest):
                check_regex(test.pattern)
        paths = [test.path for test in tests]
        self.fields = frozenset(path[0] for path in paths if isinstance(path[0], MetaField))
        self.reads_values = not all(isinstance(path[0], MetaField) for path in paths)
        self._names = {path[1] for path in paths if path[0] is MetaField.XATTRS and len(path) > 1}

    def match_documents(self, documents: Sequence[FilterDocument]) -> Bools:
        """Return for each document whether the expression is true. If it reads the value, the value must be JSON."""
        roots = [self._make_root(document) for document in documents]
        found = _evaluate(self._node, roots)
        if self.reads_values:
            found &= np.fromiter((root.value is not _MISSING for root in roots), bool, len(roots))
        return found

    def _make_root(self, document: FilterDocument) -> _Root:
        value = _decode(document.value) if self.reads_values and document.value is not None else _MISSING
        if not self.fields:
            return _Root(value, {})
        # Only attributes that the expression names are decoded.
        xattrs = {name: _decode(text) if name in self._names else None for name, text in document.xattrs}
        key = document.key.decode("utf-8", "surrogateescape")
        metadata = {MetaField.KEY: key, MetaField.EXPIRY: document.expiry}
        return _Root(value, metadata | ({MetaField.XATTRS: xattrs} if xattrs else {}))


class _Root(NamedTuple):
    """The places at which paths begin.

    Attributes:
        value: the decoded value.
        metadata: the metadata that the document has.
    """

    value: Any
    metadata: dict[MetaField, Any]


_DECODER = msgspec.json.Decoder()


def _decode(value: bytes) -> Any:
    try:
        return _DECODER.decode(value)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return _MISSING


def _evaluate(node: Node, documents: Sequence[_Root]) -> Bools:
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


def _find_field(root: _Root, path: PathSteps) -> Any:
    found: Any = root.value
    for step in path:
        if isinstance(step, MetaField):
            found = root.metadata.get(step, _MISSING)
            continue
        try:
            fits = isinstance(found, dict if isinstance(step, str) else list)
            found = found[step] if fits else _MISSING
        except LookupError:
            return _MISSING
    return found


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
