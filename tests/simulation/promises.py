"""The acknowledged writes of a simulation, and the nodes on which each of them must survive."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import VbucketState
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
        holders: node -> whether the write is on the disk of the node; without, a crash may lose it.
    """

    vbucket: int
    key: bytes
    seqno: int
    vbuuid: int
    cas: int
    place: VbucketPlace
    holders: dict[int, bool] = field(default_factory=dict)

    def is_in(self, vbucket: Vbucket) -> bool:
        """Return whether a vbucket has the write, or a later change of its key."""
        newest = vbucket.versions.find_newest_seqno(self.key)
        if newest is None or newest < self.seqno:
            return False
        meta = vbucket.versions.find_meta(self.key)
        return newest > self.seqno or (meta is not None and meta.cas == self.cas)


class Promises:
    """Checks that writes survive crashes and failovers as their acknowledgements promise it.

    A write on the owner survives until a crash of the owner, a write on the owner's disk survives that too. A write
    on a replica survives the failover to this replica. All other writes may be lost.

    Attributes:
        broken: descriptions of the writes that were lost.
        writes: the writes that must survive.
        released: number of writes that were allowed to be lost.
    """

    def __init__(self, cluster: Cluster, orchestrator: Orchestrator) -> None:
        self.broken: list[str] = []
        self.writes: dict[Write, None] = {}
        self.released = 0
        self._cluster = cluster
        self._orchestrator = orchestrator
        orchestrator.promoted = self.check_owner

    def add(self, write: Write) -> None:
        """Add a write that its owner has acknowledged."""
        if self.is_current(write):
            write.holders[write.place.owner] = False
            self.writes[write] = None

    def add_holder(self, write: Write, node: int, *, on_disk: bool) -> None:
        """Record that a node has reported a write."""
        if write in self.writes and self.is_current(write):
            write.holders[node] = write.holders.get(node, False) or on_disk

    def move(self, vbucket: int, source: int, target: int) -> None:
        """Expect the writes of an owner on the node that has taken its vbucket over."""
        for write in self.writes:
            if write.vbucket == vbucket and source in write.holders:
                write.holders.setdefault(target, False)

    def forget_copies(self, vbucket: int, number: int) -> None:
        """Expect no write in a vbucket of a node, since its copy was deleted."""
        for write in self.writes:
            if write.vbucket == vbucket:
                write.holders.pop(number, None)

    def is_current(self, write: Write) -> bool:
        """Return whether the vbucket is still where the write was made."""
        return self._orchestrator.map[write.vbucket] == write.place

    def end_process(self, node: SimulatedNode) -> None:
        """Forget all writes that were only in the memory of a node."""
        number = self._cluster.nodes.index(node)
        for write in self.writes:
            if write.holders.get(number) is False:
                del write.holders[number]

    def check_owner(self, number: int, vbucket: int) -> None:
        """Check the writes of a vbucket that has become active on a node, or is so again after a restart."""
        node = self._cluster.nodes[number]
        if node.node is None:
            return
        for write in [write for write in self.writes if write.vbucket == vbucket]:
            if number in write.holders:
                self._check(write, node)
                write.holders = {number: write.holders[number]}
                write.place = self._orchestrator.map[vbucket]
            else:
                del self.writes[write]
                self.released += 1

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
