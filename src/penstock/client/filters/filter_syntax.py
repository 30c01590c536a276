"""Reads filter expressions, a small part of the language of Couchbase's XDCR advanced filtering.

    type = "hotel" AND (rating.stars >= 4 OR EXISTS(pool)) AND NOT REGEXP_CONTAINS(name, "^Old")
    REGEXP_CONTAINS(META().id, "^hotel") AND META().xattrs.owner = "me"

The result is a tree. ValueFilter evaluates it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NoReturn

from penstock.errors import UsageError
from penstock.wire.values.json_value import describe_oddness, parse_json

MAX_LENGTH: Final = 4096
"""Characters of an expression."""

_MOST_DEPTH = 32
"""Nested parentheses and NOT."""


class MetaField(Enum):
    """The metadata of a document, with the names that follow META()."""

    KEY = "id"
    EXPIRY = "expiration"
    XATTRS = "xattrs"


PathSteps = tuple[str | int | MetaField, ...]
"""The steps to a field: names of members and indexes of elements; a negative index counts from the end.

A MetaField stands only at the beginning: the rest of the path leads into the metadata.
"""


def format_path(path: PathSteps) -> str:
    """Return a path as an expression has it."""
    first, *others = path
    text = f"META().{first.value}" if isinstance(first, MetaField) else str(first)
    return text + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in others)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A field compared with a literal.

    Attributes:
        path: the field.
        operator: one of =, !=, <, <=, > and >=.
        literal: a string, a number or a boolean.
    """

    path: PathSteps
    operator: str
    literal: str | float | bool


@dataclass(frozen=True, slots=True)
class FieldTest:
    """A test of a field without a literal.

    Attributes:
        path: the field.
        state: EXISTS, NULL or MISSING.
    """

    path: PathSteps
    state: str


@dataclass(frozen=True, slots=True)
class RegexTest:
    """A search for a regular expression in a field.

    Attributes:
        path: the field.
        pattern: the regular expression, in the syntax of RE2.
    """

    path: PathSteps
    pattern: str


@dataclass(frozen=True, slots=True)
class Negation:
    """NOT.

    Attributes:
        part: the negated expression.
    """

    part: Node


@dataclass(frozen=True, slots=True)
class Junction:
    """Expressions joined by AND, or by OR.

    Attributes:
        is_and: whether all of them must be true, not only one.
        parts: the expressions.
    """

    is_and: bool
    parts: tuple[Node, ...]


Test = Comparison | FieldTest | RegexTest
Node = Test | Negation | Junction

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    |(?P<quoted>`[^`]+`)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign>==|!=|<>|<=|>=|[=<>().,\[\]])
    )""",
    re.VERBOSE,
)
_OPERATORS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_RESERVED = frozenset(("AND", "OR", "NOT", "IS", "NULL", "MISSING", "TRUE", "FALSE", "EXISTS", "REGEXP_CONTAINS"))


@dataclass(frozen=True, slots=True)
class _Token:
    """A token of an expression.

    Attributes:
        kind: string, number, quoted, word, keyword, sign or end.
        text: the text; keywords in upper case.
        at: the index of its first character.
    """

    kind: str
    text: str
    at: int


def parse_filter(text: str) -> Node:
    """Return the tree of an expression.

    Raises:
        UsageError: the expression is invalid; the message shows where.
    """
    if len(text) > MAX_LENGTH:
        raise UsageError(f"filter of {len(text)} characters, limit {MAX_LENGTH}")
    reader = _FilterReader(text)
    node = reader.read_or(0)
    reader.expect("end", "")
    return node


def list_tests(node: Node) -> Iterator[Test]:
    """Yield the tests in a tree."""
    match node:
        case Negation():
            yield from list_tests(node.part)
        case Junction():
            for part in node.parts:
                yield from list_tests(part)
        case _:
            yield node


class _FilterReader:
    """Reads an expression from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._next = 0

    def _split(self, text: str) -> list[_Token]:
        tokens, at = [], 0
        end = len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                start = at + len(text[at:]) - len(text[at:].lstrip())
                self._refuse_at(start, f"{text[start]!r}")
            kind, word = str(found.lastgroup), found[str(found.lastgroup)]
            if kind == "word" and word.upper() in _RESERVED:
                kind, word = "keyword", word.upper()
            tokens.append(_Token(kind, word, found.start(str(found.lastgroup))))
            at = found.end()
        return [*tokens, _Token("end", "", end)]

    def _refuse_at(self, at: int, expected: str, found: str = "") -> NoReturn:
        problem = f"found {found}, expected {expected}" if found else f"{expected} is unknown"
        raise UsageError(f"filter {self._text!r}, character {at + 1}: {problem}")

    def _refuse(self, expected: str) -> NoReturn:
        token = self._tokens[self._next]
        self._refuse_at(token.at, expected, repr(token.text) if token.text else "the end")

    def _accepts(self, kind: str, text: str) -> bool:
        """Skip a token if it is this one, and return whether it was."""
        token = self._tokens[self._next]
        is_it = token.kind == kind and token.text == text
        self._next += is_it
        return is_it

    def expect(self, kind: str, text: str) -> None:
        """Skip a token. Raises UsageError for another token."""
        if not self._accepts(kind, text):
            self._refuse(repr(text) if text else "AND, OR or the end")

    def _take(self, kind: str, expected: str) -> str:
        token = self._tokens[self._next]
        if token.kind != kind:
            self._refuse(expected)
        self._next += 1
        return token.text

    def read_or(self, depth: int) -> Node:
        """Return expressions joined by OR."""
        parts = [self._read_and(depth)]
        while self._accepts("keyword", "OR"):
            parts.append(self._read_and(depth))
        return parts[0] if len(parts) == 1 else Junction(False, tuple(parts))

    def _read_and(self, depth: int) -> Node:
        parts = [self._read_part(depth)]
        while self._accepts("keyword", "AND"):
            parts.append(self._read_part(depth))
        return parts[0] if len(parts) == 1 else Junction(True, tuple(parts))

    def _read_part(self, depth: int) -> Node:
        if depth > _MOST_DEPTH:
            self._refuse(f"at most {_MOST_DEPTH} nested expressions")
        if self._accepts("keyword", "NOT"):
            return Negation(self._read_part(depth + 1))
        if self._accepts("sign", "("):
            node = self.read_or(depth + 1)
            self.expect("sign", ")")
            return node
        if self._accepts("keyword", "EXISTS"):
            self.expect("sign", "(")
            path = self._read_path()
            self.expect("sign", ")")
            return FieldTest(path, "EXISTS")
        if self._accepts("keyword", "REGEXP_CONTAINS"):
            return self._read_regex()
        return self._read_test(self._read_path())

    def _read_regex(self) -> Node:
        self.expect("sign", "(")
        path = self._read_path()
        self.expect("sign", ",")
        pattern = _unquote(self._take("string", "a regular expression in quotes"))
        self.expect("sign", ")")
        return RegexTest(path, pattern)

    def _read_test(self, path: PathSteps) -> Node:
        if self._accepts("keyword", "IS"):
            is_negated = self._accepts("keyword", "NOT")
            for state in ("NULL", "MISSING"):
                if self._accepts("keyword", state):
                    return Negation(FieldTest(path, state)) if is_negated else FieldTest(path, state)
            self._refuse("NULL or MISSING")
        token = self._tokens[self._next]
        if token.kind != "sign" or token.text not in _OPERATORS:
            self._refuse("an operator or IS")
        self._next += 1
        operator, literal = _OPERATORS[token.text], self._read_literal()
        if isinstance(literal, bool) and operator not in ("=", "!="):
            self._refuse_at(token.at, "= or != for a boolean", repr(token.text))
        return Comparison(path, operator, literal)

    def _read_literal(self) -> str | float | bool:
        for word in ("TRUE", "FALSE"):
            if self._accepts("keyword", word):
                return word == "TRUE"
        if self._tokens[self._next].kind == "string":
            return _unquote(self._take("string", ""))
        at = self._tokens[self._next].at
        number: float = parse_json(self._take("number", "a string, a number, TRUE or FALSE").encode())
        return number if describe_oddness(number) is None else self._refuse_at(at, "a number up to 1.8e308", "more")

    def _read_path(self) -> PathSteps:
        steps: list[str | int | MetaField] = [self._read_meta() or self._read_name()]
        while True:
            if self._accepts("sign", "."):
                steps.append(self._read_name())
            elif self._accepts("sign", "["):
                index = self._take("number", "a whole number")
                if not re.fullmatch("-?[0-9]{1,9}", index):
                    self._refuse_at(self._tokens[self._next - 1].at, "a whole number", repr(index))
                steps.append(int(index))
                self.expect("sign", "]")
            else:
                return tuple(steps)

    def _read_meta(self) -> MetaField | None:
        """Return the metadata that META() reads, None before another field. A field may have the name meta."""
        name, parenthesis = (self._tokens[self._next : self._next + 2] + self._tokens[-1:])[:2]
        if name.kind != "word" or name.text.upper() != "META" or (parenthesis.kind, parenthesis.text) != ("sign", "("):
            return None
        self._next += 2
        self.expect("sign", ")")
        self.expect("sign", ".")
        at, known = self._tokens[self._next].at, {field.value: field for field in MetaField}
        word = self._read_name()
        return known.get(word) or self._refuse_at(at, " or ".join(known), repr(word))

    def _read_name(self) -> str:
        if self._tokens[self._next].kind == "quoted":
            return self._take("quoted", "")[1:-1]
        return self._take("word", "the name of a field")


_ESCAPE = re.compile(r"\\(['\"\\])")


def _unquote(text: str) -> str:
    """Return the content of a string. A backslash escapes quotes and itself, and stays before other characters."""
    content: Any = _ESCAPE.sub(r"\1", text[1:-1])
    return str(content)
