"""Arguments of another type are a UsageError with the value and the type, at every public function and method."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol, TypedDict, Unpack

import numpy as np
import pytest

import penstock
import penstock.spark
from penstock import Lake, Position
from penstock.argument_types import check_arguments
from penstock.errors import UsageError
from penstock.spark import json_columns
from penstock.wire.codec.constants import Dialect


class Reads(Protocol):
    def read(self) -> bytes: ...


class Options(TypedDict, total=False):
    switch: bool
    word: str | None


@check_arguments
def take(
    count: int = 0,
    *,
    ratio: float = 0.0,
    text: str = "",
    data: bytes = b"",
    flag: bool = False,
    maybe: str | None = None,
    kind: Literal["a", "b"] = "a",
    places: Sequence[int] = (),
    names: Iterable[str] = (),
    keys: Iterable[str | bytes] = (),
    table: Mapping[int, Position] | None = None,
    call: Callable[[], int] = int,
    source: Reads | None = None,
    when: datetime | None = None,
    length: timedelta | int = 0,
    password: str | None = None,
    anything: Any = None,
    **options: Unpack[Options],
) -> str:
    """Return a word for all arguments."""
    return "taken"


class Number(int):
    """A number of a class of its own."""


ACCEPTED: dict[str, list[Any]] = {
    "count": [0, -1, 2**70, np.int64(5), Number(3)],
    "ratio": [0.5, 1, np.float32(2), float("inf")],
    "text": ["x", Dialect.DCP],
    "data": [b"x", bytearray(b"x"), memoryview(b"x")],
    "flag": [True],
    "maybe": ["x", None],
    "kind": ["a"],
    "places": [[1, 2], (1,), range(3), np.array([1]), ["x"] * 1025],
    "names": [["a"], {"a"}, iter("ab"), (name for name in "ab")],
    "keys": [["a", b"b"], "ab", iter("ab")],
    "table": [{}, {1: Position()}, None],
    "call": [len, lambda: 1, int],
    "source": [None],
    "when": [datetime(2026, 1, 1), None],
    "length": [timedelta(1), 5],
    "anything": [object(), 1, "x"],
    "word": [None, "x"],
}
REFUSED: list[tuple[str, Any, str]] = [
    ("count", "5", "count is '5', expected a whole number"),
    ("count", 5.0, "count is 5.0, expected a whole number"),
    ("count", True, "count is True, expected a whole number"),
    ("count", None, "count is None, expected a whole number"),
    ("ratio", "1", "ratio is '1', expected a number"),
    ("ratio", float("nan"), "ratio is nan, expected a number"),
    ("ratio", False, "ratio is False, expected a number"),
    ("text", b"x", "text is b'x', expected a string"),
    ("data", "x", "data is 'x', expected bytes"),
    ("data", {"a": 1}, "data is {'a': 1}, expected bytes"),
    ("flag", 1, "flag is 1, expected True or False"),
    ("flag", "true", "flag is 'true', expected True or False"),
    ("maybe", 1, "maybe is 1, expected a string or None"),
    ("kind", 1, "kind is 1, expected 'a' or 'b'"),
    ("places", "12", "places is '12', expected a list of whole numbers"),
    ("places", 5, "places is 5, expected a list of whole numbers"),
    ("places", [1, "2"], r"places is \[1, '2'\], expected a list of whole numbers"),
    ("names", "ab", "names is 'ab', expected a list"),
    ("names", 5, "names is 5, expected a list"),
    ("keys", 5, "keys is 5, expected a list"),
    ("table", [1], r"table is \[1\], expected a mapping of whole numbers to Position or None"),
    ("table", {1: 5}, r"table is {1: 5}, expected a mapping of whole numbers to Position or None"),
    ("table", {"1": Position()}, "expected a mapping of whole numbers to Position or None"),
    ("call", 5, "call is 5, expected a function"),
    ("source", "path", "source is 'path', expected Reads or None"),
    ("when", date(2026, 1, 1), r"when is datetime.date\(2026, 1, 1\), expected a datetime or None"),
    ("when", "2026-01-01", "when is '2026-01-01', expected a datetime or None"),
    ("length", 1.5, "length is 1.5, expected a timedelta or a whole number"),
    ("password", 12345, "password is of type int, expected a string or None"),
    ("word", 5, "word is 5, expected a string or None"),
    ("unknown", 5, "argument 'unknown' is unknown, expected one of count, ratio"),
]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ACCEPTED.items() for value in values])
def test_arguments_of_the_declared_type_are_taken(name: str, value: object) -> None:
    assert take(**{name: value}) == "taken"  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value", "text"), REFUSED)
def test_arguments_of_another_type_are_refused(name: str, value: object, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        take(**{name: value})  # type: ignore[arg-type]


def test_positional_arguments_are_checked() -> None:
    with pytest.raises(UsageError, match="count is 'x', expected a whole number"):
        take("x")  # type: ignore[arg-type]


def test_long_values_are_cut_in_the_error() -> None:
    with pytest.raises(UsageError) as caught:
        take("x" * 10_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


# The public surface

MADE_BY_PENSTOCK = [
    *("Boundary", "Change", "ChangeKind", "ConsumerReport", "DeadLetter", "Document", "LakePosition", "LakeStatus"),
    *("Position", "SavedPositions", "SourceProgress", "StreamCounts", "VbucketLag"),
]
"""Classes of values that programs receive; the arguments of their constructors are not checked."""

OF_EXTENSIONS = ["Dependent", "DependentKind", "Operand", "Question", "PipelineDefinition", "register_kind"]
"""Names for programs that add a kind of dependent, or define a pipeline in Python."""


class Parameter(NamedTuple):
    """A parameter of a public function or method."""

    owner: str
    call: Callable[..., Any]
    name: str
    arguments: tuple[object, ...]


def list_parameters() -> Iterable[Parameter]:
    for package in (penstock, penstock.spark):
        for name in sorted(package.__all__):
            found = getattr(package, name)
            if name in (*MADE_BY_PENSTOCK, *OF_EXTENSIONS) or inspect.ismodule(found) or not callable(found):
                continue
            if not isinstance(found, type):
                yield from find_parameters(name, found, ())
            elif not issubclass(found, Exception):
                yield from list_method_parameters(name, found)
    for name in ("parse", "infer", "evolution", "from_ddl", "to_ddl", "differences"):
        yield from find_parameters(f"json_columns.{name}", getattr(json_columns, name), ())


def list_method_parameters(name: str, owner: type) -> Iterable[Parameter]:
    for member in [name for name in dir(owner) if not name.startswith("_")] + ["__init__"]:
        method = inspect.getattr_static(owner, member)
        if isinstance(method, property) or not callable(getattr(owner, member)):
            continue
        is_bound = isinstance(method, classmethod | staticmethod)
        call = getattr(owner, member)
        # The check comes before the method, so the object needs no state.
        yield from find_parameters(f"{name}.{member}", call, () if is_bound else (object.__new__(owner),))


def find_parameters(owner: str, call: Callable[..., Any], arguments: tuple[object, ...]) -> Iterable[Parameter]:
    for parameter in list(inspect.signature(call).parameters.values())[len(arguments) :]:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        yield Parameter(owner, call, parameter.name, arguments)


UNCHECKED = {"Any", "object", "Self", "CHECKED_INSIDE]"}
"""Annotations that accept every value, or leave the check to the function."""

PARAMETERS = [
    each
    for each in list_parameters()
    if not UNCHECKED.intersection(str(inspect.signature(each.call).parameters[each.name].annotation).split(" "))
]


class Odd:
    """A value that no parameter accepts."""


@pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda each: f"{each.owner}-{each.name}")
def test_every_public_parameter_is_checked(parameter: Parameter) -> None:
    with pytest.raises(UsageError, match=rf"^{parameter.name} is .*, expected "):
        parameter.call(*parameter.arguments, **{parameter.name: Odd()})


def test_documents_of_another_form_are_refused() -> None:
    async def main(url: str) -> list[str]:
        texts = []
        async with penstock.connect(url) as bucket:
            calls: list[Callable[[], Any]] = [
                lambda: bucket.upsert("k", {"a": 1}),  # type: ignore[arg-type]
                lambda: bucket.upsert("k", b"", expiry=None),  # type: ignore[arg-type]
                lambda: bucket.upsert("k", b"", flags=2**32),
                lambda: bucket.insert("k", b"", datatype=-1),
                lambda: bucket.remove("k", cas=2**64),
                lambda: bucket.upsert_many({"a": b"1"}),  # type: ignore[dict-item]
                lambda: bucket.upsert_many([("a", {})]),  # type: ignore[list-item]
                lambda: bucket.get_many([5]),  # type: ignore[list-item]
                lambda: bucket.stream(stop={0: 2**64}),
                lambda: bucket.stream({0: Position(seqno=-1)}),
            ]
            for call in calls:
                with pytest.raises(UsageError) as caught:
                    await call()
                texts.append(str(caught.value))
        return texts

    with penstock.Node.running(buckets=["beer"], vbuckets=4) as node:
        texts = asyncio.run(main(node.url("beer")))
    assert texts == [
        "value is {'a': 1}, expected bytes",
        "expiry is None, expected a whole number, a timedelta or a datetime",
        "flags is 4294967296, expected 0 to 4294967295",
        "datatype is -1, expected 0 to 255",
        "cas is 18446744073709551616, expected 0 to 18446744073709551615",
        "document is 'a', expected a key and a value",
        "value is {} under b'a', expected bytes",
        "key is 5, expected a string or bytes",
        "end of vbucket 0 is 18446744073709551616, expected 0 to 18446744073709551615",
        "seqno of vbucket 0 is -1, expected 0 to 18446744073709551615",
    ]


@pytest.mark.parametrize("at", ["2026-11-28T22:00:00Z", date(2026, 11, 28), 1.5, 7, None])
def test_a_state_of_a_lake_needs_a_position_or_a_time(tmp_path: Any, at: Any) -> None:
    lake = Lake(tmp_path)
    for read in (lake.as_of, lake.as_of_batches):
        with pytest.raises(UsageError, match=r"^at is .*, expected LakePosition, Offset or a datetime$"):
            read(at)
