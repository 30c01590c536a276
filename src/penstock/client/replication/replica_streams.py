"""The states of a replication's vbuckets, and the times of their next attempts. Pure: the clock is an argument."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from enum import Enum, auto

from penstock.client.connect.address import Address
from penstock.client.relays.node_relay import ReplicaBusy
from penstock.client.streams.outages import Outages


class ReplicaPhase(Enum):
    """The state of one vbucket of a replication."""

    WAITING = auto()
    REQUESTED = auto()
    RUNNING = auto()
    DONE = auto()


_ALLOWED = {
    ReplicaPhase.WAITING: frozenset((ReplicaPhase.REQUESTED, ReplicaPhase.DONE)),
    ReplicaPhase.REQUESTED: frozenset((ReplicaPhase.RUNNING, ReplicaPhase.WAITING)),
    ReplicaPhase.RUNNING: frozenset((ReplicaPhase.WAITING, ReplicaPhase.DONE)),
    ReplicaPhase.DONE: frozenset[ReplicaPhase](),
}
"""Phase -> the phases that may follow."""


class ReplicaStreams:
    """Decides which vbuckets of a replication need a stream now.

    Attributes:
        phases: phase of each vbucket.
    """

    def __init__(self, vbuckets: Iterable[int], address: Address, clock: Callable[[], float]) -> None:
        """Create vbuckets that wait for their streams.

        Args:
            vbuckets: the vbuckets.
            address: the source; its option retry_seconds limits the attempts.
            clock: returns monotonic seconds.
        """
        self.phases = dict.fromkeys(vbuckets, ReplicaPhase.WAITING)
        self._outages = Outages(address, clock)

    def add(self, vbuckets: Iterable[int]) -> None:
        """Add vbuckets that wait for their streams. Those that are known stay in their phase."""
        for vbucket in vbuckets:
            self.phases.setdefault(vbucket, ReplicaPhase.WAITING)

    def find(self, phase: ReplicaPhase) -> set[int]:
        """Return the vbuckets in a phase."""
        return {vbucket for vbucket, found in self.phases.items() if found is phase}

    def take_due(self) -> set[int]:
        """Return the vbuckets whose stream must be requested now. They count as requested."""
        due = self._outages.find_due(self.find(ReplicaPhase.WAITING))
        self._change(due, ReplicaPhase.REQUESTED)
        return due

    def accept(self, vbucket: int) -> None:
        """Record that the stream of a requested vbucket runs."""
        self._change((vbucket,), ReplicaPhase.RUNNING)
        self._outages.forget_recovered(self.find(ReplicaPhase.WAITING) | self.find(ReplicaPhase.REQUESTED))

    def fail(self, node: Hashable, vbuckets: Collection[int], error: Exception) -> None:
        """Record that vbuckets have no stream, and schedule the next attempt. Vbuckets without one stay as they are.

        A vbucket that another program replicates may wait for as long as that program runs.

        Raises:
            Unreachable: the attempts have failed for too long.
            Error, OSError: the failure itself, if it is permanent.
        """
        failed = [vb for vb in vbuckets if self.phases[vb] in (ReplicaPhase.REQUESTED, ReplicaPhase.RUNNING)]
        self._change(failed, ReplicaPhase.WAITING)
        if failed:
            self._outages.record_failure(node, failed, error, had_worked=isinstance(error, ReplicaBusy))

    def finish(self, vbuckets: Collection[int]) -> None:
        """Record that vbuckets need no stream any more."""
        finished = [vb for vb in vbuckets if self.phases[vb] is not ReplicaPhase.DONE]
        requested = [vb for vb in finished if self.phases[vb] is ReplicaPhase.REQUESTED]
        self._change(requested, ReplicaPhase.WAITING)
        self._change(finished, ReplicaPhase.DONE)

    def _change(self, vbuckets: Iterable[int], phase: ReplicaPhase) -> None:
        for vbucket in vbuckets:
            assert phase in _ALLOWED[self.phases[vbucket]], (vbucket, self.phases[vbucket], phase)
            self.phases[vbucket] = phase
