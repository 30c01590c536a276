"""Holds changes of a stream back until they are on disk, so that no failover makes a delivered change void."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.stream_position import Position
from penstock.client.topology.persisted_seqnos import HeldSeqno, PersistedSeqno
from penstock.errors import Error, Unreachable

_FIRST_DELAY, _MOST_DELAY = 0.005, 0.25
"""Seconds between two questions whether changes are on disk. A disk takes some milliseconds."""

PersistenceSource = Callable[[Mapping[int, HeldSeqno]], Awaitable[Mapping[int, PersistedSeqno]]]
"""Takes the changes that are held back, and returns the seqnos on disk, both by vbucket. It may leave vbuckets out."""


class BranchLost(Error):
    """A vbucket has a new branch, which may lack changes that were read or written."""


class PersistenceGate:
    """Holds changes back until they are on disk.

    Args:
        source: requests the seqnos on disk.
        patience: seconds without progress of the disks, after which waiting ends with an error.
    """

    def __init__(self, source: PersistenceSource, patience: float) -> None:
        self._source = source
        self._patience = patience
        self._known: dict[int, PersistedSeqno] = {}
        self._branches: dict[int, int] = {}

    async def wait_until_persisted(self, delivery: Delivery) -> None:
        """Wait until the changes of a delivery are on disk.

        Raises:
            BranchLost: a vbucket has a new branch. The stream must resume at an earlier position.
            Unreachable: the disks make no progress.
        """
        self._branches.update({vbucket: log[0].vbuuid for vbucket, log in delivery.logs.items() if log})
        missing, delay, waited = self._find_missing(delivery.positions), _FIRST_DELAY, 0.0
        while missing:
            before = {vbucket: self._known.get(vbucket) for vbucket in missing}
            self._known.update(await self._source(missing))
            for vbucket in missing:
                self._check_branch(vbucket)
            missing = self._find_missing(delivery.positions)
            if not missing:
                return
            waited = waited + delay if before == {vbucket: self._known.get(vbucket) for vbucket in before} else 0.0
            if waited > self._patience:
                raise Unreachable(f"vbucket {min(missing)}: its changes are not on disk after {self._patience:g} s")
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MOST_DELAY)

    def _check_branch(self, vbucket: int) -> None:
        known, expected = self._known.get(vbucket), self._branches.get(vbucket)
        if known is not None and expected is not None and known.vbuuid != expected:
            raise BranchLost(f"vbucket {vbucket} of the source has a new branch")

    def _find_missing(self, positions: Mapping[int, Position]) -> dict[int, HeldSeqno]:
        """Return the positions that are not known to be on disk, by vbucket."""
        return {
            vbucket: HeldSeqno(self._branches.get(vbucket, position.vbuuid), position.seqno)
            for vbucket, position in positions.items()
            if not self._is_persisted(vbucket, position.seqno)
        }

    def _is_persisted(self, vbucket: int, seqno: int) -> bool:
        known = self._known.get(vbucket)
        return (
            known is not None
            and known.persisted_seqno >= seqno
            and known.vbuuid == self._branches.get(vbucket, known.vbuuid)
        )
