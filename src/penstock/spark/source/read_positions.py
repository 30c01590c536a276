"""Where a read begins and ends, as options say it: a word, or positions as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.errors import UsageError
from penstock.spark.source.offsets import Offset, settled_at
from penstock.spark.source.runs import brief, number

__all__ = ["EARLIEST", "LATEST", "Place", "Positions", "end_of", "start_of"]

EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True)
class Positions:
    """A position (vbuuid, seqno) of some vbuckets, the newest change that somebody has; in the others, none."""

    by_vbucket: Mapping[int, tuple[int, int]]

    def offset(self, count: int) -> Offset:
        """Return the offset of a bucket with `count` vbuckets. Raises UsageError for a vbucket that there is not."""
        return settled_at(self.by_vbucket, count)


Place: TypeAlias = str | Offset | Positions
"""EARLIEST or LATEST, or an offset of this source, or positions by vbucket."""


def start_of(name: str, text: str) -> Place:
    """Return where an option says that a read begins; otherwise as `end_of`."""
    return _place_of(name, text, (EARLIEST, LATEST))


def end_of(name: str, text: str) -> Place:
    """Return where an option says that a read ends.

    JSON is an offset of this source (of `latest_offsets`, or of a query's checkpoint or progress), or
    `{"7": {"vbuuid": "123", "seqno": 40}}` by vbucket, numbers as such or as text. Raises UsageError.
    """
    return _place_of(name, text, (LATEST,))


def _place_of(name: str, text: str, words: tuple[str, ...]) -> Place:
    if text in words:
        return text
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise UsageError(f"option {name} is {brief(text)!r}, expected {', '.join(words)} or positions as JSON")
    if "version" in said:
        return Offset.from_json(said)
    try:
        return Positions({_whole(vbucket): _position(each) for vbucket, each in said.items()})
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f'option {name} is {brief(text)!r} ({error}), expected positions as {{"7": {{"vbuuid": "1", "seqno": 40}}}}'
        ) from None


def _position(said: Any) -> tuple[int, int]:
    if said.keys() != {"vbuuid", "seqno"}:
        raise ValueError("a position has vbuuid and seqno")
    return _whole(said["vbuuid"]), _whole(said["seqno"])


def _whole(value: object) -> int:
    return number(str(value))
