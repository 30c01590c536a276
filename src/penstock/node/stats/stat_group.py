"""Groups of STAT: the function, the argument and the privilege of each."""

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

Stats = Iterator[tuple[str, object]]
"""(name, value) of each statistic."""

_LONGEST_NUMBER = 20  # of a u64, in digits
_LONGEST_ECHO = 20


class StatRequest(NamedTuple):
    """One STAT.

    Attributes:
        session: the session of the client.
        name: name of the group.
        argument: the text behind the name and a space; may be empty.
        options: the JSON object in the value of the request.
    """

    session: Session
    name: str
    argument: str
    options: Mapping[str, Any]

    @property
    def bucket(self) -> ServedBucket:
        """The selected bucket. Raises NoBucket."""
        return self.session.require_bucket()

    @property
    def node(self) -> NodeServices:
        """The node of the session."""
        return self.session.node


class Argument(Enum):
    """Whether a group has an argument."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


class StatGroup(NamedTuple):
    """A group of STAT.

    Attributes:
        read: returns the statistics. It raises StatusError; the iterator may raise it later.
        doc: the group's content, for the documentation.
        argument: whether the group has an argument.
        usage: the argument's form.
        privilege: the privilege that the user needs.
    """

    read: Callable[[StatRequest], Stats]
    doc: str
    argument: Argument = Argument.NONE
    usage: str = ""
    privilege: Privilege = Privilege.SIMPLE_STATS

    def check(self, request: StatRequest) -> None:
        """Check the argument.

        Raises:
            InvalidArguments: the argument is missing, or the group has none.
        """
        if request.argument and self.argument is Argument.NONE:
            found = request.argument[:_LONGEST_ECHO]
            raise InvalidArguments(f"{request.name}: expected no argument, found {found!r}")
        if not request.argument and self.argument is Argument.REQUIRED:
            raise InvalidArguments(f"{request.name}: expected the argument {self.usage}, found none")


def make_bucket_group(read: Callable[[ServedBucket], Stats], doc: str) -> StatGroup:
    """Return a group without an argument, about the selected bucket."""
    return StatGroup(lambda request: read(request.bucket), doc)


def make_vbucket_group(read: Callable[[ServedBucket, Vbucket], Stats], doc: str) -> StatGroup:
    """Return a group that shows every vbucket of the bucket, or the one whose number is the argument."""

    def read_group(request: StatRequest) -> Stats:
        bucket = request.bucket
        if request.argument:
            return read(bucket, bucket.store.find_existing(parse_vbucket(request.name, request.argument)))
        return (line for vbucket in bucket.store.vbuckets if vbucket.history.state for line in read(bucket, vbucket))

    return StatGroup(read_group, doc, Argument.OPTIONAL, "VBUCKET")


def make_missing_group(reason: str) -> StatGroup:
    """Return a group of kv_engine that a node does not support.

    Args:
        reason: a clause with the reason, for the error and the documentation.
    """

    def read_group(request: StatRequest) -> Stats:
        raise NotSupported(f"group {request.name!r} is not supported: {reason}")

    return StatGroup(read_group, reason, Argument.OPTIONAL)


def parse_vbucket(name: str, text: str) -> int:
    """Return the number of a vbucket. The vbucket need not exist. Raises InvalidArguments for another text.

    A number above 65535 is that of a missing vbucket, as in ep-engine 3.x; its test suites expect that.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
        raise InvalidArguments(f"{name}: expected the number of a vbucket, found {text[:_LONGEST_ECHO]!r}")
    return int(text)


def format_value(value: object) -> object:
    """Return a value in the form of STAT: `true` and `false` in lower case."""
    return str(value).lower() if isinstance(value, bool) else value
