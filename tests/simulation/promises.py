"""The acknowledged writes of a simulation, and the nodes on which each of them must survive."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import DurabilityLevel, VbucketState
from tests.simulation.cluster import Cluster, SimulatedNode
from tests.simulation.orchestrator import Orchestrator, VbucketPlace

__all__ = ["Promises", "Write"]


@dataclass(eq=False)
class Write:
    """An acknowledged write.

    Attributes:
        vbucket: its vbucket.
        key: the key, with the prefix of the default collection.
        seqno: its by_seqno.
        vbuuid: the branch.
        cas: its cas.
        place: the place of the vbucket when it was written.
        level: the durability level; None: the write is plain.
        holders: node -> whether the write is on the disk of the node; without, a crash may lose it.
        spoiled: the nodes whose copy may have been lost, of a durable write.
        has_majority: whether a majority of the nodes has the durable write, those without spoiled copies.
    """

    vbucket: int
    key: bytes
    seqno: int
    vbuuid: int
    cas: int
    place: VbucketPlace
    level: DurabilityLevel | None = None
    holders: dict[int, bool] = field(default_factory=dict)
    spoiled: set[int] = field(default_factory=set)
    has_majority: bool = False

    def is_in(self, vbucket: Vbucket) -> bool:
        """Return whether a vbucket has the write, or a later change of its key.

        A promoted replica may commit a durable write with another seqno. It may also have it prepared only.
        """
        if self.level is not None:
            found = vbucket.versions.find_meta(self.key)
            return (found is not None and found.cas >= self.cas) or self.key in vbucket.history.prepares.pending
        newest = vbucket.versions.find_newest_seqno(self.key)
        if newest is None or newest < self.seqno:
            return False
        meta = vbucket.versions.find_meta(self.key)
        return newest > self.seqno or (meta is not None and meta.cas == self.cas)


class Promises:
    """Checks that writes survive crashes and failovers as their acknowledgements promise it.

    A write on the owner survives until a crash of the owner, a write on the owner's disk survives that too. A write
    on a replica survives the failover to this replica. All other plain writes may be lost.

    A majority of the nodes has a durable write: in memory, also on the owner's disk, or on the disks of the majority.
    It survives the failover to the best of several replicas, if they are too many to be all without it.

    Attributes:
        broken: descriptions of the writes that were lost.
        writes: the writes that must survive.
        released: number of writes that were allowed to be lost.
        ended: the nodes whose processes have ended, in order.
    """

    def __init__(self, cluster: Cluster, orchestrator: Orchestrator) -> None:
        self.broken: list[str] = []
        self.writes: dict[Write, None] = {}
        self.released = 0
        self.ended: list[int] = []
        self._cluster = cluster
        self._orchestrator = orchestrator
        orchestrator.promoted = self.check_owner

    def add(self, write: Write, since: int) -> None:
        """Add a write that its owner has acknowledged.

        Args:
            write: the write.
            since: the length of `ended` before the request. The answer may arrive late: nodes that had the write may
                have lost it meanwhile.
        """
        if self.is_current(write):
            if write.level is not DurabilityLevel.PERSIST_TO_MAJORITY:
                write.spoiled.update(self.ended[since:])
            is_stored = write.level is not None and write.level > DurabilityLevel.MAJORITY
            write.holders[write.place.owner] = is_stored
            write.has_majority = write.level is not None
            self.writes[write] = None

    def add_holder(self, write: Write, node: int, *, on_disk: bool) -> None:
        """Record that a node has reported a write."""
        if write in self.writes and self.is_current(write):
            write.holders[node] = write.holders.get(node, False) or on_disk

    def move(self, vbucket: int, source: int, target: int, *, is_complete: bool) -> None:
        """Expect the writes of an owner on the node that has taken its vbucket over; after a complete move, on disk."""
        for write in self.writes:
            if write.vbucket == vbucket and source in write.holders:
                is_stored = is_complete and write.holders[source]
                write.holders[target] = write.holders.get(target, False) or is_stored

    def forget_copies(self, vbucket: int, number: int) -> None:
        """Expect no write in a vbucket of a node, since its copy was deleted."""
        for write in self.writes:
            if write.vbucket == vbucket:
                write.holders.pop(number, None)
                write.spoiled.add(number)

    def forget_lost(self, vbucket: int, source: int, target: int) -> None:
        """Expect no write on the target of a move that the restarted source has lost: the target follows it."""
        for write in self.writes:
            if write.vbucket == vbucket and source not in write.holders:
                write.holders.pop(target, None)
                write.spoiled.add(target)

    def is_current(self, write: Write) -> bool:
        """Return whether the vbucket is still where the write was made."""
        return self._orchestrator.map[write.vbucket] == write.place

    def end_process(self, node: SimulatedNode) -> None:
        """Forget all writes that were only in the memory of a node."""
        number = self._cluster.nodes.index(node)
        self.ended.append(number)
        for write in self.writes:
            if write.level is not DurabilityLevel.PERSIST_TO_MAJORITY:
                write.spoiled.add(number)
            if write.holders.get(number) is False:
                del write.holders[number]

    def check_owner(self, number: int, vbucket: int) -> None:
        """Check the writes of a vbucket that has become active on a node, or is so again after a restart."""
        node = self._cluster.nodes[number]
        if node.node is None:
            return
        for write in [write for write in self.writes if write.vbucket == vbucket]:
            if number in write.holders or self._must_be_on(write, number):
                self._check(write, node)
                write.holders = {number: write.holders.get(number, False)}
                write.has_majority = write.has_majority and number == write.place.owner
                write.place = self._orchestrator.map[vbucket]
            else:
                del self.writes[write]
                self.released += 1

    def _must_be_on(self, write: Write, number: int) -> bool:
        """Return whether a new owner must have a durable write: too few of the candidates may lack it."""
        others = (len(self._cluster.nodes) - 1) // 2
        candidates = self._orchestrator.candidates.get(write.vbucket, frozenset())
        is_safe = number in candidates - write.spoiled and len(candidates - write.spoiled) > others
        return write.has_majority and is_safe

    def check_all(self) -> None:
        """Check all writes on the owners of their vbuckets."""
        for write in self.writes:
            owner = self._orchestrator.map[write.vbucket].owner
            if owner in write.holders:
                self._check(write, self._cluster.nodes[owner])

    def _check(self, write: Write, node: SimulatedNode) -> None:
        vbucket = node.vbuckets[write.vbucket]
        if vbucket.history.state is not VbucketState.ACTIVE:
            self.broken.append(f"vbucket {write.vbucket} is {vbucket.history.state} on {node.name}")
        if not write.is_in(vbucket):
            newest = vbucket.versions.find_newest_seqno(write.key)
            self.broken.append(
                f"{node.name} lost {write}: newest seqno of the key {newest}, high seqno {vbucket.changes.high_seqno}, "
                f"failover log {vbucket.history.failover_log}"
            )
