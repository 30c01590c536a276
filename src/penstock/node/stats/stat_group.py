"""What a group of STAT is: its function, and what has to stand behind its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from penstock.errors import InvalidArguments, NotSupported
from penstock.node.auth import Privilege
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.session.node_services import NodeServices
from penstock.node.session.session import Session
from penstock.store.documents.vbucket import Vbucket

__all__ = [
    "Argument",
    "StatGroup",
    "StatRequest",
    "Stats",
    "group_of_bucket",
    "group_of_vbuckets",
    "missing_group",
    "parse_vbucket",
    "shown",
]

Stats = Iterator[tuple[str, object]]
"""(name, value) of each statistic."""

_LONGEST_NUMBER = 20  # of a u64, in digits
_LONGEST_ECHO = 20


class StatRequest(NamedTuple):
    """One STAT.

    Attributes:
        session: where it came from.
        name: of the group.
        argument: what stands behind the name and a space, or nothing.
        options: the JSON object in the value of the request.
    """

    session: Session
    name: str
    argument: str
    options: Mapping[str, Any]

    @property
    def bucket(self) -> ServedBucket:
        """The selected bucket. Raises NoBucket."""
        return self.session.selected()

    @property
    def node(self) -> NodeServices:
        return self.session.node


class Argument(Enum):
    """Whether something stands behind the name of a group."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


class StatGroup(NamedTuple):
    """A group of STAT.

    Attributes:
        read: returns the statistics. Raises StatusError; an iterator may raise it later.
        doc: what the group shows, for the documentation.
        argument: whether something stands behind the name.
        usage: what that is.
        privilege: what the user needs.
    """

    read: Callable[[StatRequest], Stats]
    doc: str
    argument: Argument = Argument.NONE
    usage: str = ""
    privilege: Privilege = Privilege.SIMPLE_STATS

    def check(self, request: StatRequest) -> None:
        """Raise InvalidArguments if the argument is missing, or there is one too many."""
        if request.argument and self.argument is Argument.NONE:
            found = request.argument[:_LONGEST_ECHO]
            raise InvalidArguments(f"{request.name}: expected nothing behind it, found {found!r}")
        if not request.argument and self.argument is Argument.REQUIRED:
            raise InvalidArguments(f"{request.name}: expected {self.usage} behind it, found nothing")


def group_of_bucket(read: Callable[[ServedBucket], Stats], doc: str) -> StatGroup:
    """Return a group about the selected bucket alone."""
    return StatGroup(lambda request: read(request.bucket), doc)


def group_of_vbuckets(read: Callable[[ServedBucket, Vbucket], Stats], doc: str) -> StatGroup:
    """Return a group that shows every vbucket of the bucket, or the one whose number is the argument."""

    def read_group(request: StatRequest) -> Stats:
        bucket = request.bucket
        if request.argument:
            return read(bucket, bucket.store.existing(parse_vbucket(request.name, request.argument)))
        return (line for vbucket in bucket.store.vbuckets if vbucket.history.state for line in read(bucket, vbucket))

    return StatGroup(read_group, doc, Argument.OPTIONAL, "VBUCKET")


def missing_group(why: str) -> StatGroup:
    """Return a group of kv_engine that a node does not have. why: a clause that says what it lacks."""

    def read_group(request: StatRequest) -> Stats:
        raise NotSupported(f"group {request.name!r} is not supported: {why}")

    return StatGroup(read_group, why, Argument.OPTIONAL)


def parse_vbucket(name: str, text: str) -> int:
    """Return the number of a vbucket, there or not. Raises InvalidArguments for another text.

    A number above 65535 is one of a vbucket that is not there, as in ep-engine 3.x; the suites of that time want that.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
        raise InvalidArguments(f"{name}: expected a vbucket's number, found {text[:_LONGEST_ECHO]!r}")
    return int(text)


def shown(value: object) -> object:
    """Return a value as STAT shows it: `true` and `false` in small letters."""
    return str(value).lower() if isinstance(value, bool) else value
