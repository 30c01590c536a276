"""Vbuckets that no node serves: their names in messages, and the option missingVbuckets.

A vbucket is served if its node in the cluster map has it active or as a replica; all vbuckets of a bridge are replicas.
It is not served if it is dead, pending or absent there, or if the map has no node for it. A pending vbucket takes over
from another node; kv_engine lists it as alive and refuses its streams.
Source: kv_engine, ep_engine.cc (getAllVBucketSequenceNumbers), dcp/producer.cc (streamRequest); 3.x streams it.
A TAP dump contains active vbuckets only, except the dump of a bridge. Source: ep-engine 2.5.1, tapconnection.cc.

A complete read needs every vbucket. It waits for vbuckets that are not served, as for a node that is down, and then
fails. With the option missingVbuckets=skip the read leaves them out and reports them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from penstock.client.connect.address import Address, MissingVbuckets
from penstock.errors import UsageError, VbucketsNotServed

T = TypeVar("T")

logger = logging.getLogger("penstock.client")

_GROUPS_WITH_KEY = frozenset(("key", "key-byid", "vkey", "vkey-byid"))
"""Statistics groups whose arguments are a document's key and its vbucket."""


def check_vbucket_numbers(vbuckets: Iterable[int], count: int, address: Address) -> None:
    """Raise UsageError for a vbucket number outside a bucket with `count` vbuckets."""
    for vbucket in vbuckets:
        if not 0 <= vbucket < count:
            raise UsageError(f"vbucket {vbucket} of {address}, which has {count}")


def parse_group_vbuckets(group: str) -> list[int]:
    """Return the vbucket in the arguments of a statistics group; an empty list if they contain none."""
    name, *arguments = group.split() or [""]
    place = 1 if name in _GROUPS_WITH_KEY else 0
    return [int(word) for word in arguments[place : place + 1] if word.isascii() and word.isdecimal()]


def format_ranges(numbers: Iterable[int], separator: str = ",") -> str:
    """Return numbers as text, with ranges for consecutive numbers: `0-511,600`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return separator.join(f"{first}-{last}" if first < last else str(first) for first, last in runs)


def make_not_served_error(
    missing: Collection[int], count: int, address: Address, reason: str = ""
) -> VbucketsNotServed:
    """Return the error for vbuckets that no node serves.

    Args:
        missing: the vbuckets.
        count: the number of vbuckets of the bucket.
        address: the bucket.
        reason: the cause; empty if it is unknown.
    """
    because = f" ({reason})" if reason else ""
    sentence = f"{_describe_missing(missing, count)} not served by {address}{because}"
    return VbucketsNotServed(sentence, vbuckets=tuple(sorted(missing)))


def _describe_missing(missing: Collection[int], count: int) -> str:
    if len(missing) == 1:
        return f"vbucket {min(missing)} (1 of {count}) is"
    return f"vbuckets {format_ranges(missing, ', ')} ({len(missing)} of {count}) are"


class MissingReport:
    """Applies the option missingVbuckets, and logs each change of the skipped vbuckets.

    Attributes:
        missing: the vbuckets that the last call skipped.
    """

    def __init__(self, address: Address) -> None:
        self.missing: tuple[int, ...] = ()
        self._address = address

    def select_served(self, wanted: Sequence[int], served: Mapping[int, T], count: int) -> dict[int, T]:
        """Select the requested vbuckets among the served ones.

        Args:
            wanted: the requested vbuckets.
            served: served vbucket -> any value.
            count: the number of vbuckets of the bucket.

        Returns:
            The values of the requested vbuckets that are served.

        Raises:
            VbucketsNotServed: some vbuckets are not served, and the option is `fail`.
        """
        missing = tuple(vbucket for vbucket in wanted if vbucket not in served)
        if missing and self._address.options.missing_vbuckets is MissingVbuckets.FAIL:
            raise make_not_served_error(missing, count, self._address)
        if missing != self.missing and missing:
            logger.warning(
                "%s not served by %s: skipped (missingVbuckets=skip)", _describe_missing(missing, count), self._address
            )
        elif missing != self.missing:
            logger.warning("all vbuckets of %s are served again", self._address)
        self.missing = missing
        return {vbucket: served[vbucket] for vbucket in wanted if vbucket in served}
