"""The check of the arguments by which consumers share a bucket."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.positions.position_store import PositionStore
from penstock.client.streams.stream_choice import Stop
from penstock.errors import UsageError


def check_sharing(
    store: PositionStore | None,
    group: str | None,
    share: tuple[int, int] | None,
    *,
    vbuckets: Sequence[int] | None,
    stop: Stop,
    lease_seconds: float,
) -> None:
    """Check that a consumer is alone, in a group, or has a fixed share. The arguments are those of Consumer.

    Raises:
        UsageError: arguments exclude each other, or a number is out of range.
    """
    if (store is None) == (group is None):
        found = "neither" if store is None else "both"
        raise UsageError(f"found {found} of store and group, expected one of them to keep the positions")
    if group is not None and not (share is None and vbuckets is None and stop is None):
        raise UsageError("found share, vbuckets or stop beside group, expected none: the group decides the vbuckets")
    if group == "":
        raise UsageError("the group has no name, expected one or more characters")
    if share is not None and vbuckets is not None:
        raise UsageError("found share and vbuckets, expected one of them")
    if share is not None and not 0 <= share[0] < share[1]:
        raise UsageError(f"share is {share!r}, expected (number, count) with a number from 0 to count - 1")
    if lease_seconds <= 0:
        raise UsageError(f"lease_seconds is {lease_seconds!r}, expected a number above 0")
