"""The acknowledged writes of a simulation, and the nodes on which each of them must survive."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import DurabilityLevel
from tests.simulation.cluster import Cluster, SimulatedNode
from tests.simulation.orchestrator import ClusterDriver, VbucketPlace


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
        spoiled: whether a node that had the durable write in memory may have ended.
        has_majority: whether a majority of the nodes has got the durable write from its owner.
    """

    vbucket: int
    key: bytes
    seqno: int
    vbuuid: int
    cas: int
    place: VbucketPlace
    level: DurabilityLevel | None = None
    holders: dict[int, bool] = field(default_factory=dict)
    spoiled: bool = False
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
    """Checks that writes survive crashes, failovers and moves as their acknowledgements promise it.

    A write on the owner survives until a crash of the owner, a write on the owner's disk survives that too. A write
    on a replica survives the failover to this replica. A move that ends keeps all writes. All other plain writes may
    be lost.

    No failover may lose a durable write that a majority of the nodes has on disk. The same holds for one in memory,
    until a node crashes.

    Attributes:
        broken: descriptions of the writes that were lost.
        writes: the writes that must survive.
        released: number of writes that were allowed to be lost.
        ended: number of ended processes.
    """

    def __init__(self, cluster: Cluster, driver: ClusterDriver) -> None:
        self.broken: list[str] = []
        self.writes: dict[Write, None] = {}
        self.released = 0
        self.ended = 0
        self._cluster = cluster
        self._driver = driver
        driver.promoted = self.change_owner
        driver.restarted = self.restart_owner

    def add(self, write: Write, since: int) -> None:
        """Add a write that its owner has acknowledged.

        Args:
            write: the write.
            since: `ended` before the request. The answer may arrive late: nodes that had the write may have lost it
                meanwhile.
        """
        if self.is_current(write):
            write.spoiled = self.ended > since
            is_stored = write.level is not None and write.level > DurabilityLevel.MAJORITY
            write.holders[write.place.owner] = is_stored
            write.has_majority = write.level is not None
            self.writes[write] = None

    def add_holder(self, write: Write, node: int, *, on_disk: bool) -> None:
        """Record that a node has reported a write."""
        if write in self.writes and self.is_current(write):
            write.holders[node] = write.holders.get(node, False) or on_disk

    def is_current(self, write: Write) -> bool:
        """Return whether the vbucket is still where the write was made."""
        return self._driver.map[write.vbucket] == write.place

    def end_process(self, node: SimulatedNode) -> None:
        """Forget all writes that were only in the memory of a node."""
        number = self._cluster.nodes.index(node)
        self.ended += 1
        for write in self.writes:
            write.spoiled = True
            if write.holders.get(number) is False:
                del write.holders[number]

    def change_owner(self, vbucket: int, former: int, has_all: bool) -> None:
        """Check the writes of a vbucket on its new owner.

        Args:
            vbucket: the vbucket.
            former: number of the former owner.
            has_all: whether the new owner has all writes of the former one, and those of its disk on disk.
        """
        place = self._driver.map[vbucket]
        node = self._cluster.nodes[place.owner]
        for write in self._list_writes(vbucket):
            if has_all and former in write.holders:
                write.holders[place.owner] = write.holders.get(place.owner, False) or write.holders[former]
            is_safe = write.has_majority and (write.level is DurabilityLevel.PERSIST_TO_MAJORITY or not write.spoiled)
            if place.owner not in write.holders and not (is_safe and node.node is not None):
                self._release(write)
                continue
            self._check(write, node)
            write.holders = {place.owner: write.holders.get(place.owner, False)}
            write.has_majority = False
            write.place = place

    def restart_owner(self, vbucket: int) -> None:
        """Release the writes of a vbucket that a crash of its owner has taken: the replicas follow it."""
        owner = self._driver.map[vbucket].owner
        for write in self._list_writes(vbucket):
            if owner not in write.holders:
                self._release(write)

    def check_all(self) -> None:
        """Check all writes on the owners of their vbuckets."""
        for write in self.writes:
            owner = self._driver.map[write.vbucket].owner
            if owner in write.holders:
                self._check(write, self._cluster.nodes[owner])

    def _list_writes(self, vbucket: int) -> list[Write]:
        return [write for write in self.writes if write.vbucket == vbucket]

    def _release(self, write: Write) -> None:
        del self.writes[write]
        self.released += 1

    def _check(self, write: Write, node: SimulatedNode) -> None:
        if node.node is None:
            return
        vbucket = node.vbuckets[write.vbucket]
        if not write.is_in(vbucket):
            newest = vbucket.versions.find_newest_seqno(write.key)
            self.broken.append(
                f"{node.name} lost {write}: newest seqno of the key {newest}, high seqno {vbucket.changes.high_seqno}, "
                f"failover log {vbucket.history.failover_log}"
            )
