"""Selects documents by their JSON and their metadata, with a filter expression.

A test of an odd field (see penstock.wire.values.json_value) is neither true nor false. As in SQL, AND and OR may be
decided by their other parts. A document whose expression is not decided is unreadable: it neither matches, nor is it
one that does not match.

Regular expressions run in RE2, whose time is linear in the length of the text.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

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
    Test,
    format_path,
    list_tests,
    parse_filter,
)
from penstock.errors import UsageError
from penstock.wire.values.json_value import TooDeepJson, describe_oddness, is_text, parse_json

Bools = npt.NDArray[np.bool_]
Truths = npt.NDArray[np.int8]
"""FALSE, UNKNOWN or TRUE of each document, so that AND is the least, and OR the greatest."""

_FALSE, _UNKNOWN, _TRUE = range(3)

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


class Verdicts(NamedTuple):
    """The decisions of a filter about documents.

    Attributes:
        matches: whether each document matches.
        unreadable: the place of each unreadable document, with the reason. It does not match.
    """

    matches: Bools
    unreadable: dict[int, str]


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

    def match_documents(self, documents: Sequence[FilterDocument]) -> Verdicts:
        """Return which documents match. If the expression reads the value, a value that is not JSON does not match."""
        roots = [self._make_root(document) for document in documents]
        reasons: dict[int, str] = {}
        truths = _evaluate(self._node, roots, reasons)
        if self.reads_values:
            truths[np.fromiter((root.value is _MISSING for root in roots), bool, len(roots))] = _FALSE
        places = np.flatnonzero(truths == _UNKNOWN).tolist()
        return Verdicts(truths == _TRUE, {place: reasons[place] for place in places})

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


class _Unread(NamedTuple):
    """Stands for JSON that cannot be read.

    Attributes:
        reason: the reason.
    """

    reason: str


def _decode(value: bytes) -> Any:
    try:
        return parse_json(value)
    except TooDeepJson as error:
        return _Unread(str(error))
    except ValueError:
        return _MISSING


def _evaluate(node: Node, documents: Sequence[_Root], reasons: dict[int, str]) -> Truths:
    """Return whether an expression is true for each document, and add the reasons why it is unknown."""
    if isinstance(node, Junction):
        combine = np.minimum if node.is_and else np.maximum
        found: Truths = combine.reduce([_evaluate(part, documents, reasons) for part in node.parts])
        return found
    if isinstance(node, Negation):
        return _TRUE - _evaluate(node.part, documents, reasons)
    fields = [_find_field(document, node.path) for document in documents]
    truths = _test_fields(node, fields).astype(np.int8) * np.int8(_TRUE)
    reads_value = not isinstance(node, FieldTest)
    for place, field in enumerate(fields):
        if isinstance(field, _Unread):
            reason = field.reason
        elif reads_value and (oddness := describe_oddness(field)) is not None:
            reason = f"{format_path(node.path)} is {oddness}"
        else:
            continue
        truths[place] = _UNKNOWN
        reasons.setdefault(place, reason)
    return truths


def _test_fields(node: Test, fields: list[Any]) -> Bools:
    """Return whether a test is true for each value of its field, if it is known."""
    match node:
        case RegexTest():
            matched = pc.match_substring_regex(pa.array([_to_text(each) for each in fields], pa.string()), node.pattern)
            return np.asarray(matched.fill_null(False))
        case FieldTest():
            test = _STATES[node.state]
        case Comparison():
            test = _make_comparison(node)
    return np.fromiter(map(test, fields), bool, len(fields))


def _find_field(root: _Root, path: PathSteps) -> Any:
    found: Any = root.value
    for step in path:
        if isinstance(step, MetaField):
            found = root.metadata.get(step, _MISSING)
            continue
        container: type[Any] = dict if isinstance(step, str) else list
        if not isinstance(found, container):
            return found if isinstance(found, _Unread) else _MISSING
        try:
            found = found[step]
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


_NUMBERS: Final = (int, float)


def _get_kind(value: Any) -> type | None:
    """Return the JSON type of a value; None for null, objects, arrays and missing fields."""
    if isinstance(value, str):
        return str
    if isinstance(value, bool):
        return bool
    return float if isinstance(value, _NUMBERS) else None


def _to_text(value: Any) -> str | None:
    """Return a string that Arrow accepts; None for other values."""
    return value if isinstance(value, str) and is_text(value) else None
