"""The vbuckets of a stream that wait for their node, with the back-off and the time limit of their attempts.

Vbuckets that failed for the same node form a group, which has one back-off and one limit. When all vbuckets of a group
have recovered, the group is deleted, so that its next failure counts as the first one. Pure: the clock is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable

from penstock.client.connect.address import Address
from penstock.client.connect.retry import Retry

EVERY_NODE: Hashable = "every node"
"""The group of a failure that does not belong to a single node: for example, no node can be reached."""


class Outages:
    """Decides when vbuckets that failed are tried again, and raises Unreachable after the time limit.

    It is true while any group has a failure.
    """

    def __init__(
        self,
        address: Address,
        clock: Callable[[], float],
        *,
        limitless: bool = False,
        record_error: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """Create outages without failures.

        Args:
            address: the bucket; its option retry_seconds is the limit.
            clock: returns monotonic seconds.
            limitless: groups of single nodes have no limit. The group EVERY_NODE always has the limit.
            record_error: is called with each failure.
        """
        self._record_error = record_error
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
        """Record a failure, and schedule the next attempt.

        A vbucket stays in the group of its first failure. Otherwise each change of the map would restart its limit.

        Args:
            node: the group of vbuckets that have no group yet: a node, NO_NODE or EVERY_NODE.
            vbuckets: the vbuckets that failed.
            error: the failure.
            had_worked: the stream or connection had worked for a while, so earlier failures do not count.

        Raises:
            Unreachable: the group has failed for as long as the limit.
            Error, OSError: the failure itself, if it is permanent.
        """
        self._record_error(error)
        groups = {self._group_of.setdefault(vbucket, node) for vbucket in vbuckets}
        if node is EVERY_NODE:  # its limit applies in addition to those of the vbuckets' groups
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

    def make_due(self, vbuckets: Collection[int]) -> None:
        """Let an attempt be due now for vbuckets: their node may have changed. Their time limits stay."""
        for group in {self._group_of[vb] for vb in vbuckets if vb in self._group_of}:
            self._due[group] = min(self._due[group], self._clock())

    def find_due(self, vbuckets: Collection[int]) -> set[int]:
        """Return those of the vbuckets for which an attempt is due. A vbucket without a failure is always due."""
        now = self._clock()
        return {vb for vb in vbuckets if self._due.get(self._group_of.get(vb, _NO_GROUP), now) <= now}

    def find_next_due(self, vbuckets: Collection[int]) -> float | None:
        """Return the clock's time of the first attempt for any of the vbuckets; None if no attempt is scheduled."""
        times = [self._due[self._group_of[vb]] for vb in vbuckets if self._group_of.get(vb, _NO_GROUP) in self._due]
        return min(times, default=None)

    def forget_recovered(self, failing: Collection[int]) -> None:
        """Delete the failures of all vbuckets except those in `failing`."""
        self._group_of = {vb: group for vb, group in self._group_of.items() if vb in failing}
        left = {*self._group_of.values()}
        for group in [group for group in self._groups if group not in left]:
            del self._groups[group], self._due[group]


_NO_GROUP = object()
