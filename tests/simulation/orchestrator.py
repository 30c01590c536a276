"""The orchestrator of a simulated cluster: a map with revisions, states of vbuckets, and replication between nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple

from penstock.client.connect.address import parse_address
from penstock.client.connect.client_session import open_session
from penstock.client.connect.handshake import Purpose
from penstock.client.replication.replica_choice import ReplicaReport, choose_replica
from penstock.errors import Error
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import Datatype, StreamFlag
from penstock.wire.messages.kv import SetVbucket
from tests.simulation.cluster import BUCKET, PORT, Cluster, SimulatedNode
from tests.simulation.relay import PLAIN, run_relay
from tests.simulation.virtual_loop import Process

__all__ = ["Orchestrator", "VbucketPlace"]

_RETRY_SECONDS = 0.3
_TIMEOUT = 3.0


class VbucketPlace(NamedTuple):
    """The places of a vbucket.

    Attributes:
        revision: the revision of the map in which the vbucket came here.
        owner: number of the node with the active vbucket. All other nodes have replicas.
    """

    revision: int
    owner: int


class Orchestrator:
    """Decides on which node each vbucket is active, and keeps states and replication accordingly.

    Attributes:
        revision: the revision of the map, which each failover increases.
        map: the place of each vbucket.
        candidates: vbucket -> the nodes of which its owner had the best replica, as it became the owner.
        applied: the revision of the map that each node has; 0 after a restart.
        moving: the vbuckets that are being moved by takeover.
        changed: set and replaced at each change of the map.
        replica_state: the state of vbuckets on other nodes than the owner.
        spoil: changes the bytes that are replicated; None: nothing does.
        promoted: called with a node and a vbucket that became active there.
    """

    def __init__(self, cluster: Cluster, process: Process) -> None:
        self.cluster = cluster
        self.revision = 1
        self.map = {vb: VbucketPlace(1, vb % len(cluster.nodes)) for vb in range(cluster.vbuckets)}
        self.candidates: dict[int, frozenset[int]] = {}
        self.applied = dict.fromkeys(range(len(cluster.nodes)), 0)
        self._forgotten = dict.fromkeys(self.applied, 0)
        self.moving: set[int] = set()
        self.changed = asyncio.Event()
        self.promoted: Callable[[int, int], None] = lambda node, vbucket: None
        self.replica_state = VbucketState.REPLICA
        self.spoil: Callable[[bytes], bytes] | None = None
        self._process = process

    def run(self) -> None:
        """Begin to keep all nodes and all replications."""
        nodes = range(len(self.cluster.nodes))
        for number in nodes:
            self.cluster.loop.spawn(self._process, self._keep_states(number))
        for source in nodes:
            for target in nodes:
                if source != target:
                    self.cluster.loop.spawn(self._process, self._keep_replication(source, target))

    def fail_over(self, vbucket: int, target: int) -> bool:
        """Make another node the owner of a vbucket, if it can be."""
        if not self.can_own(vbucket, target):
            return False
        self.change_owner(vbucket, target)
        return True

    def fail_over_best(self, vbucket: int) -> bool:
        """Make the node with the best replica of a vbucket its owner, if there is one."""
        reports = {}
        for number, node in enumerate(self.cluster.nodes):
            if self.can_own(vbucket, number):
                history = node.vbuckets[vbucket].history
                if history.failover_log:
                    report = ReplicaReport((node.host, number), tuple(history.failover_log), history.whole_seqno)
                    reports[number] = report
        if not reports:
            return False
        _, target = choose_replica(list(reports.values())).endpoint
        self.change_owner(vbucket, target)
        self.candidates[vbucket] = frozenset(reports)
        return True

    def can_own(self, vbucket: int, target: int) -> bool:
        """Return whether a node that runs has a replica of the vbucket since the last change of its place."""
        place = self.map[vbucket]
        has_replica = target != place.owner and self.applied[target] >= place.revision
        return has_replica and vbucket not in self.moving and self.cluster.nodes[target].node is not None

    def change_owner(self, vbucket: int, target: int) -> None:
        """Publish a new map."""
        self.revision += 1
        self.map[vbucket] = VbucketPlace(self.revision, target)
        self.candidates[vbucket] = frozenset((target,))
        self._notify()

    def begin_move(self, vbucket: int) -> None:
        """Send no states of a vbucket, and do not replicate it."""
        self.moving.add(vbucket)
        self._notify()

    def end_move(self, vbucket: int) -> None:
        """Send states of the vbucket again."""
        self.moving.discard(vbucket)
        self._notify()

    def list_owned(self, number: int) -> list[int]:
        """Return the vbuckets to replicate from a node."""
        return [vb for vb, place in self.map.items() if place.owner == number and vb not in self.moving]

    def forget(self, node: SimulatedNode) -> None:
        """Send the states to a node again, since it has crashed or a vbucket was moved."""
        number = self.cluster.nodes.index(node)
        self.applied[number] = 0
        self._forgotten[number] += 1
        self._notify()

    def make_url(self, number: int) -> str:
        """Return the connection string of a node."""
        host = self.cluster.nodes[number].host
        return f"couchbase://{host}:{PORT}/{BUCKET}?connectTimeout={_TIMEOUT:g}&operationTimeout={_TIMEOUT:g}"

    async def relay(self, source: int, target: int, vbuckets: Collection[int], flags: StreamFlag = PLAIN) -> None:
        """Copy vbuckets of one node to another, as `run_relay` does."""
        name = self.cluster.nodes[target].name
        await run_relay(self.make_url(source), self.make_url(target), vbuckets, self.spoil, flags, name)

    def _notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def wait_for_change(self, seconds: float) -> None:
        """Return at the next change of the map, or after some time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.changed.wait()

    async def _keep_states(self, number: int) -> None:
        while True:
            if self.applied[number] < self.revision:
                with suppress(OSError, Error, TimeoutError):
                    await self._send_states(number)
                    continue
            await self.wait_for_change(_RETRY_SECONDS if self.applied[number] < self.revision else 1e6)

    async def _send_states(self, number: int) -> None:
        node, forgotten = self.cluster.nodes[number], self._forgotten[number]
        process, revision, before = node.process, self.revision, self.applied[number]
        session = await open_session(parse_address(self.make_url(number)), Purpose(durable_writes=True))
        try:
            for vbucket, place in self.map.items():
                if vbucket in self.moving:
                    continue
                owns = place.owner == number
                state = VbucketState.ACTIVE if owns else self.replica_state
                request = SetVbucket(
                    vbucket=vbucket, state=state, value=self._describe_chain(place), datatype=Datatype.JSON
                )
                await session.link.request(request, _TIMEOUT)
                if owns and place.revision > before and process.is_alive and self.map[vbucket] == place:
                    self.promoted(number, vbucket)
        finally:
            with suppress(TimeoutError):
                await session.link.close()
        if forgotten == self._forgotten[number] and process.is_alive and not (self.moving and not before):
            self.applied[number] = revision

    def _describe_chain(self, place: VbucketPlace) -> bytes:
        """Return the topology of a vbucket: its owner, and all other nodes as replicas."""
        nodes = self.cluster.nodes
        replicas = [node.name for node in nodes if node is not nodes[place.owner]]
        return json.dumps({"topology": [[nodes[place.owner].name, *replicas]]}).encode()

    async def _keep_replication(self, source: int, target: int) -> None:
        while True:
            places = dict(self.map)
            own = self.list_owned(source)
            due = max((places[vb].revision for vb in own), default=0)
            is_ready = own and min(self.applied[source], self.applied[target]) >= due
            if is_ready:
                relay = asyncio.ensure_future(self.relay(source, target, own))
                while not relay.done() and self.list_owned(source) == own:
                    change = asyncio.ensure_future(self.wait_for_change(1e6))
                    await asyncio.wait([relay, change], return_when=asyncio.FIRST_COMPLETED)
                    change.cancel()
                relay.cancel()
                with suppress(OSError, Error, TimeoutError, asyncio.CancelledError):
                    await relay
            await self.wait_for_change(_RETRY_SECONDS)
