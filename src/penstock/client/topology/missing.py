"""Vbuckets that no node serves: how messages name them, and what a read does about them; and numbers of no vbucket.

A vbucket is served if a node that the cluster map names for it has it active, or as a replica: all vbuckets of a bridge
are replicas. It is not served if it is dead, pending or absent there, or if the map names no node. A pending vbucket
takes changes for a node that is still the active one; kv_engine lists it as alive and refuses its streams.
Source: kv_engine, ep_engine.cc (getAllVBucketSequenceNumbers), dcp/producer.cc (streamRequest); 3.x streams it.
A TAP dump is of active vbuckets alone, but for the dump of a bridge. Source: ep-engine 2.5.1, tapconnection.cc.

A read that is to be complete must see every vbucket, so it waits for those that are not served, as for a node that is
away, and then fails. The option missingVbuckets=skip leaves them out instead, and the read reports them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from penstock.client.connect.address import Address, MissingVbuckets
from penstock.errors import UsageError, VbucketsNotServed

__all__ = ["MissingReport", "check_numbers", "not_served", "ranges_of", "vbuckets_named"]

T = TypeVar("T")

logger = logging.getLogger("penstock.client")

_BEHIND_A_KEY = frozenset(("key", "key-byid", "vkey", "vkey-byid"))
"""Statistics groups whose first argument is a document's key, and the second one a vbucket."""


def check_numbers(vbuckets: Iterable[int], count: int, address: Address) -> None:
    """Raise UsageError for a number that no vbucket has in a bucket with `count` of them."""
    for vbucket in vbuckets:
        if not 0 <= vbucket < count:
            raise UsageError(f"vbucket {vbucket} of {address}, which has {count}")


def vbuckets_named(group: str) -> list[int]:
    """Return the vbucket that a statistics group with its arguments is about, nothing if it is about none."""
    name, *arguments = group.split() or [""]
    place = 1 if name in _BEHIND_A_KEY else 0
    return [int(word) for word in arguments[place : place + 1] if word.isascii() and word.isdecimal()]


def ranges_of(numbers: Iterable[int], separator: str = ",") -> str:
    """Return numbers as text, those in a row by the first and the last of them: `0-511,600`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return separator.join(f"{first}-{last}" if first < last else str(first) for first, last in runs)


def not_served(missing: Collection[int], count: int, address: Address, reason: str = "") -> VbucketsNotServed:
    """Return the error that names these vbuckets of a bucket with `count` of them. reason: why, where it is known."""
    because = f" ({reason})" if reason else ""
    sentence = f"{_sentence(missing, count)} not served by {address}{because}"
    return VbucketsNotServed(sentence, vbuckets=tuple(sorted(missing)))


def _sentence(missing: Collection[int], count: int) -> str:
    if len(missing) == 1:
        return f"vbucket {min(missing)} (1 of {count}) is"
    return f"vbuckets {ranges_of(missing, ', ')} ({len(missing)} of {count}) are"


class MissingReport:
    """Applies the option missingVbuckets, and reports what is left out: once for each change.

    Attributes:
        missing: the vbuckets that the last check left out.
    """

    def __init__(self, address: Address) -> None:
        self.missing: tuple[int, ...] = ()
        self._address = address

    def check(self, wanted: Sequence[int], served: Mapping[int, T], count: int) -> dict[int, T]:
        """Return what is known of the wanted vbuckets that are served.

        Args:
            served: what is known, by vbucket.
            count: how many vbuckets the bucket has.

        Raises:
            VbucketsNotServed: some are not served, and the option does not accept that.
        """
        missing = tuple(vbucket for vbucket in wanted if vbucket not in served)
        if missing and self._address.options.missing_vbuckets is MissingVbuckets.FAIL:
            raise not_served(missing, count, self._address)
        if missing != self.missing and missing:
            logger.warning(
                "%s not served by %s: left out (missingVbuckets=skip)", _sentence(missing, count), self._address
            )
        elif missing != self.missing:
            logger.warning("all vbuckets of %s are served again", self._address)
        self.missing = missing
        return {vbucket: served[vbucket] for vbucket in wanted if vbucket in served}
