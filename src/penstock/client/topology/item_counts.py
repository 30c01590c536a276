"""Comparison of a server's document counts with the changes of a TAP stream. Pure functions: no socket, no clock.

TAP has no seqnos and no message for the end of a dump. ep-engine 2.5.1 mostly ends a dump without any CLOSE_BACKFILL,
and 3.1.6 sends no backfill after a crash. The statistics show then whether a stream is complete.
Source: ep-engine 2.5 vbucket.cc, `VBucket::addStats`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from penstock.client.connect.stat_numbers import read_number

ITEM_COUNT_GROUP = "vbucket-details"
"""The statistics group with the counts."""

_ACTIVE = "active"
_SHOWN = 3
"""Vbuckets that a message lists."""

_FIELD = re.compile(r"vb_(\d{1,5}):(num_items|tap_items|uuid)", re.ASCII)


class ItemCount(NamedTuple):
    """The document count of an active vbucket.

    Attributes:
        items: documents that TAP sends.
        branch: the newest vbuuid as text; empty if the server does not report it (Couchbase 2.5.1).
    """

    items: int
    branch: str = ""


ItemCounts = Mapping[int, ItemCount]
"""Vbucket -> count. Contains active vbuckets only, because a dump sends no others."""


class Shortfall(NamedTuple):
    """A vbucket whose stream lacks documents.

    Attributes:
        received: received changes that store a document.
        counted: documents that the server counts.
    """

    received: int
    counted: int


def read_item_counts(stats: Mapping[str, str]) -> dict[int, ItemCount] | None:
    """Return the counts in the statistics of ITEM_COUNT_GROUP; None if there are no counts.

    Penstock's node reports `tap_items` as well: TAP sends the default collection only. Raises RemoteProtocolError.
    """
    fields = [(int(field[1]), field[2], text) for name, text in stats.items() if (field := _FIELD.fullmatch(name))]
    reported = {(vbucket, name): text for vbucket, name, text in fields}
    counts = {}
    for vbucket, _ in reported:
        items = reported.get((vbucket, "tap_items"), reported.get((vbucket, "num_items"), ""))
        if items:
            number = read_number(f"num_items of vbucket {vbucket}", items)
            counts[vbucket] = ItemCount(number, reported.get((vbucket, "uuid"), ""))
    if not counts:
        return None
    return {vb: count for vb, count in counts.items() if stats.get(f"vb_{vb}") == _ACTIVE}


def find_shortfalls(
    vbuckets: Collection[int], received: Sequence[int], before: ItemCounts, after: ItemCounts
) -> dict[int, Shortfall]:
    """Return the vbuckets whose stream is proven incomplete.

    A document that exists before and after the stream was read has to be in it. A vbucket with another branch was read
    from two histories.

    Args:
        vbuckets: the requested vbuckets.
        received: vbucket -> received changes that store a document.
        before: counts from before the stream began.
        after: counts from after the end of the stream or of its backfill.
    """
    found = {}
    for vbucket in sorted(vbuckets):
        if vbucket in before and vbucket in after:
            counted = min(before[vbucket].items, after[vbucket].items)
            is_mixed = before[vbucket].branch != after[vbucket].branch and received[vbucket] > 0
            if received[vbucket] < counted or is_mixed:
                found[vbucket] = Shortfall(received[vbucket], after[vbucket].items)
    return found


def describe_shortfalls(shortfalls: Mapping[int, Shortfall]) -> str:
    """Return the counts as text: `3 of 10 documents (vbucket 2: 1 of 4, vbucket 5: 2 of 6)`."""
    received = sum(each.received for each in shortfalls.values())
    counted = sum(each.counted for each in shortfalls.values())
    shown = [f"vbucket {vb}: {each.received} of {each.counted}" for vb, each in [*shortfalls.items()][:_SHOWN]]
    more = [f"{len(shortfalls) - _SHOWN} more vbuckets"] if len(shortfalls) > _SHOWN else []
    return f"{received} of {counted} documents ({', '.join(shown + more)})"
