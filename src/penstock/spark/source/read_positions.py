"""Start and end of a read, as options give them: a word, or positions as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.errors import UsageError
from penstock.spark.source.offsets import Offset, make_proven_offset
from penstock.spark.source.run_lengths import parse_number, shorten_text

__all__ = ["EARLIEST", "LATEST", "ReadPosition", "VbucketPositions", "parse_end", "parse_start"]

EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True)
class VbucketPositions:
    """Positions (vbuuid, seqno) of some vbuckets: the newest changes that a reader has. Other vbuckets have none.

    Attributes:
        by_vbucket: the position of each vbucket.
    """

    by_vbucket: Mapping[int, tuple[int, int]]

    def to_offset(self, count: int) -> Offset:
        """Return these positions as an offset of a bucket with `count` vbuckets.

        Raises UsageError for a vbucket that the bucket does not have.
        """
        return make_proven_offset(self.by_vbucket, count)


ReadPosition: TypeAlias = str | Offset | VbucketPositions
"""EARLIEST or LATEST, an offset of this source, or positions by vbucket."""


def parse_start(name: str, text: str) -> ReadPosition:
    """Return the start of a read from the text of an option. JSON and errors are those of `parse_end`."""
    return _parse_read_position(name, text, (EARLIEST, LATEST))


def parse_end(name: str, text: str) -> ReadPosition:
    """Return the end of a read from the text of an option.

    JSON is an offset or positions. An offset comes from `latest_offsets`, from a query's checkpoint or from its
    progress. Positions are `{"7": {"vbuuid": "123", "seqno": 40}}` by vbucket, with numbers as JSON numbers or strings.

    Args:
        name: the option, for errors.
        text: its value.

    Raises:
        UsageError: the text is none of these.
    """
    return _parse_read_position(name, text, (LATEST,))


def _parse_read_position(name: str, text: str, words: tuple[str, ...]) -> ReadPosition:
    if text in words:
        return text
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise UsageError(f"option {name} is {shorten_text(text)!r}, expected {', '.join(words)} or positions as JSON")
    if "version" in decoded:
        return Offset.from_json(decoded)
    try:
        return VbucketPositions(
            {_parse_whole_number(vbucket): _parse_position(each) for vbucket, each in decoded.items()}
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"option {name} is {shorten_text(text)!r} ({error}), "
            'expected positions as {"7": {"vbuuid": "1", "seqno": 40}}'
        ) from None


def _parse_position(decoded: Any) -> tuple[int, int]:
    if decoded.keys() != {"vbuuid", "seqno"}:
        raise ValueError("a position has vbuuid and seqno")
    return _parse_whole_number(decoded["vbuuid"]), _parse_whole_number(decoded["seqno"])


def _parse_whole_number(value: object) -> int:
    return parse_number(str(value))
