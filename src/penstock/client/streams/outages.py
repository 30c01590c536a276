"""The vbuckets of a stream that wait for their node: since when, for how long yet, and when the next attempt is due.

Vbuckets that failed for the same node form a group, which has one back-off and one limit. A group whose vbuckets are
all well again is forgotten, so that its next failure is the first one. Pure: the clock is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable

from penstock.client.connect.address import Address
from penstock.client.connect.retry import Retry

__all__ = ["EVERY_NODE", "Outages"]

EVERY_NODE: Hashable = "every node"
"""The group of a failure that is no single node's: no node can be reached, or the map names none for the vbucket."""


class Outages:
    """Decides when vbuckets that failed are tried again, and raises Unreachable when that has lasted too long.

    Args:
        limitless: groups of single nodes are tried again for ever. The group EVERY_NODE always has the limit.
    """

    def __init__(self, address: Address, clock: Callable[[], float], *, limitless: bool = False) -> None:
        self._address = address
        self._clock = clock
        self._limitless = limitless
        self._groups: dict[Hashable, Retry] = {}
        self._due: dict[Hashable, float] = {}
        self._group_of: dict[int, Hashable] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def record_failure(
        self, node: Hashable, vbuckets: Collection[int], error: Exception, *, had_worked: bool = False
    ) -> None:
        """Note a failure, and plan the next attempt.

        A vbucket stays in the group of its first failure, so that a map that keeps changing gives it no more time.

        Args:
            lasted: what failed had done its work for a while, so the failures before it do not count.

        Raises:
            Unreachable: the group has failed for as long as the limit.
            Error, OSError: the failure itself, if no attempt can mend it.
        """
        groups = {self._group_of.setdefault(vbucket, node) for vbucket in vbuckets}
        if node is EVERY_NODE:  # has its limit whatever the groups of its vbuckets have
            groups.add(node)
        for group in groups:
            retry = self._groups.get(group)
            if retry is None:
                is_limited = group is EVERY_NODE or not self._limitless
                limit = self._address.options.retry_seconds if is_limited else math.inf
                retry = self._groups[group] = Retry(limit, self._clock)
            elif had_worked:
                retry.restart_timer()
            self._due[group] = self._clock() + retry.next_delay(error, self._address)

    def find_due(self, vbuckets: Collection[int]) -> set[int]:
        """Return those of the vbuckets for which an attempt is due."""
        now = self._clock()
        return {vb for vb in vbuckets if self._due.get(self._group_of.get(vb, _NO_GROUP), now) <= now}

    def find_next_due(self, vbuckets: Collection[int]) -> float | None:
        """Return when the first attempt for any of the vbuckets is due."""
        times = [self._due[self._group_of[vb]] for vb in vbuckets if self._group_of.get(vb, _NO_GROUP) in self._due]
        return min(times, default=None)

    def forget_recovered(self, failing: Collection[int]) -> None:
        """Forget the failures of all vbuckets but the ill ones."""
        self._group_of = {vb: group for vb, group in self._group_of.items() if vb in failing}
        left = {*self._group_of.values()}
        for group in [group for group in self._groups if group not in left]:
            del self._groups[group], self._due[group]


_NO_GROUP = object()
