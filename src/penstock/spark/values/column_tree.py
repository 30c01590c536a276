"""The tree of members that a document parser looks for: which member of a document is in which column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import pyarrow as pa

from penstock.errors import UsageError
from penstock.spark.values.json_times import DATE, TIMESTAMP

FORMS = {"unix_s": 6, "unix_ms": 3, "unix_us": 0}
"""Forms of a time as a number -> how many digits of a fraction of its unit are microseconds."""


class NodeKind(IntEnum):
    """How the values of a node are read; the extension module has the same numbers."""

    GROUP = 0
    STRUCT = 1
    LIST = 2
    MAP = 3
    BOOLEAN = 4
    INTEGER = 5
    FLOAT = 6
    DECIMAL = 7
    STRING = 8
    JSON_TEXT = 9
    BINARY = 10
    TIMESTAMP = 11
    DATE = 12


class Reason(IntEnum):
    """Why a value is not in a column; the extension module has the same numbers."""

    NO_OBJECT = 0
    UNKNOWN = 1
    REPEATED = 2
    OTHER_TYPE = 3
    INEXACT = 4
    OTHER_TEXT = 5

    @property
    def words(self) -> str:
        """The reason as reports name it."""
        return _WORDS[self]


_WORDS = ("no JSON object", "unknown field", "repeated name", "other type", "not held exactly", "text of another form")


@dataclass(slots=True)
class ColumnNode:
    """One member of documents, or the elements of one.

    Attributes:
        kind: how its values are read.
        path: its names joined by dots, with [] for the elements of an array or the values of a map.
        name: the key of its value: the column, or the field of a struct.
        arrow_type: its type; null for a group, which has no column itself.
        unit_digits: of times that are numbers: a value of FORMS. -1 for times that are text.
        members: name of a member -> its node, of a group or a struct.
        element: the node of the elements, of an array or a map.
    """

    kind: NodeKind
    path: str = ""
    name: str = ""
    arrow_type: pa.DataType = field(default_factory=pa.null)
    unit_digits: int = -1
    members: dict[str, ColumnNode] = field(default_factory=dict)
    element: ColumnNode | None = None


_LEAVES = {
    pa.bool_(): NodeKind.BOOLEAN,
    pa.int8(): NodeKind.INTEGER,
    pa.int16(): NodeKind.INTEGER,
    pa.int32(): NodeKind.INTEGER,
    pa.int64(): NodeKind.INTEGER,
    pa.float32(): NodeKind.FLOAT,
    pa.float64(): NodeKind.FLOAT,
    pa.string(): NodeKind.STRING,
    pa.binary(): NodeKind.BINARY,
    TIMESTAMP: NodeKind.TIMESTAMP,
    DATE: NodeKind.DATE,
}


def build_type_node(of: pa.DataType, path: str, name: str, form: str | None) -> ColumnNode:
    """Return the node of a column, or of a part of one.

    Args:
        of: its type.
        path: the path of its values.
        name: the key of its value.
        form: the form of the rule.

    Raises:
        UsageError: JSON has no values of the type.
    """
    if pa.types.is_struct(of):
        members = {each.name: build_type_node(each.type, f"{path}.{each.name}", each.name, form) for each in of}
        if len(members) < len(of):
            raise UsageError(f"fields {', '.join(each.name for each in of)}; expected each name once")
        return ColumnNode(NodeKind.STRUCT, path, name, of, members=members)
    if pa.types.is_list(of) or (pa.types.is_map(of) and of.key_type == pa.string()):
        kind, inner = (NodeKind.LIST, of.value_type) if pa.types.is_list(of) else (NodeKind.MAP, of.item_type)
        return ColumnNode(kind, path, name, of, element=build_type_node(inner, f"{path}[]", "", form))
    if pa.types.is_decimal128(of) and 0 <= of.scale <= of.precision:
        return ColumnNode(NodeKind.DECIMAL, path, name, of)
    if of not in _LEAVES:
        raise UsageError(f"column {path} is {of}; expected a type that JSON has values of")
    kind = _LEAVES[of]
    if kind is NodeKind.STRING and form == "json":
        kind = NodeKind.JSON_TEXT
    is_time = kind in (NodeKind.TIMESTAMP, NodeKind.DATE)
    return ColumnNode(kind, path, name, of, FORMS.get(form or "", -1) if is_time else -1)


def join_path(path: str, name: str) -> str:
    """Return the path of a member, with `?` for halves of surrogate pairs in its name."""
    shown = name.encode(errors="replace").decode()
    return f"{path}.{shown}" if path else shown


@dataclass(frozen=True, slots=True)
class NodeTable:
    """A tree as the extension module reads it.

    Attributes:
        numbers: eight for each node: its kind, two about its type, and the place and bytes of its name in `names`. Then
            the place and the count of the nodes below it, and its column or -1.
        names: the names of members, as UTF-8.
        paths: the path of each node.
    """

    numbers: bytes
    names: bytes
    paths: tuple[str, ...]


def encode_tree(root: ColumnNode, columns: Sequence[str]) -> NodeTable:
    """Return a tree as the extension module reads it: all nodes below a node stand behind each other.

    Args:
        root: the node of documents.
        columns: the names of the columns in their order.
    """
    places = {name: place for place, name in enumerate(columns)}
    nodes: list[tuple[str, ColumnNode, int]] = [("", root, -1)]
    numbers: list[int] = []
    names = b""
    for name, node, column in nodes:  # grows
        below = [
            (
                each_name,
                each,
                places[each.name] if node.kind is NodeKind.GROUP and each.kind is not NodeKind.GROUP else -1,
            )
            for each_name, each in _list_below(node)
        ]
        encoded = name.encode("utf-8", "surrogatepass")
        numbers += [node.kind, *_describe_type(node), len(names), len(encoded), len(nodes), len(below), column]
        names += encoded
        nodes += below
    paths = tuple(node.path for _, node, _ in nodes)
    return NodeTable(np.array(numbers, np.int32).tobytes(), names, paths)


def _list_below(node: ColumnNode) -> Iterator[tuple[str, ColumnNode]]:
    if node.kind is NodeKind.MAP:
        yield "", ColumnNode(NodeKind.STRING, node.path)
    if node.element:
        yield "", node.element
    yield from node.members.items()


def _describe_type(node: ColumnNode) -> tuple[int, int]:
    if node.kind in (NodeKind.INTEGER, NodeKind.FLOAT):
        return node.arrow_type.bit_width, 0
    if node.kind is NodeKind.DECIMAL:
        return node.arrow_type.precision, node.arrow_type.scale
    return node.unit_digits, 0
