"""The orchestrator of a simulated cluster: a map with revisions, states of vbuckets, and replication between nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.client.cluster.replica_choice import ReplicaReport, choose_replica
from penstock.client.connect.address import Address, parse_address
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.replication.map_layout import PUSHED_EPOCH, MapLayout, MapNode, make_map_document
from penstock.client.replication.node_control import NodeControl
from penstock.errors import Error
from penstock.wire.codec.constants import VbucketState
from tests.simulation.cluster import BUCKET, PORT, Cluster, SimulatedNode
from tests.simulation.relay import run_relay
from tests.simulation.virtual_loop import Process

__all__ = ["Orchestrator", "VbucketPlace"]

_RETRY_SECONDS = 0.3
_TIMEOUT = 3.0
_VERSION_STEP = 1000
"""Revisions of pushed maps between two of the orchestrator: the mover publishes its own maps between them."""


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
        revision: the revision of the map, which each failover and each move increases.
        map: the place of each vbucket.
        candidates: vbucket -> the nodes of which its owner had the best replica, as it became the owner.
        applied: the revision of the map that each node has; 0 after a restart.
        moving: the vbuckets that are being moved by takeover.
        changed: set and replaced at each change of the map.
        replica_state: the state of vbuckets on other nodes than the owner.
        spoil: changes the bytes that are replicated; None: nothing does.
        promoted: called with a node and a vbucket that became active there.
    """

    def __init__(self, cluster: Cluster, vbuckets: int, process: Process) -> None:
        self.cluster = cluster
        self.revision = 1
        self.map = {vb: VbucketPlace(1, vb % len(cluster.nodes)) for vb in range(vbuckets)}
        self.candidates: dict[int, frozenset[int]] = {}
        self.applied = dict.fromkeys(range(len(cluster.nodes)), 0)
        self._forgotten = dict.fromkeys(self.applied, 0)
        self.moving: set[int] = set()
        self.changed = asyncio.Event()
        self.promoted: Callable[[int, int], None] = lambda node, vbucket: None
        self.replica_state = VbucketState.REPLICA
        self.spoil: Callable[[bytes], bytes] | None = None
        self._process = process
        self._nodes = tuple(MapNode((node.host, PORT), {"kv": PORT}) for node in cluster.nodes)
        self._base: dict[str, Any] = {}

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
        """Return whether a node that runs has a replica of the vbucket since the last change of its place.

        During a move no vbucket gets another owner: the mover would not know that map, since it publishes its own.
        """
        place = self.map[vbucket]
        has_replica = target != place.owner and self.applied[target] >= place.revision
        return has_replica and not self.moving and self.cluster.nodes[target].node is not None

    def change_owner(self, vbucket: int, target: int) -> None:
        """Publish a new map."""
        self.revision += 1
        self.map[vbucket] = VbucketPlace(self.revision, target)
        self.candidates[vbucket] = frozenset((target,))
        self._notify()

    def begin_move(self, vbucket: int) -> None:
        """Send no states of a vbucket, do not replicate it, and leave the maps to the mover."""
        self.moving.add(vbucket)
        self._notify()

    def end_move(self, vbucket: int) -> None:
        """Send states of the vbucket again, and a map that is newer than those of the mover to all nodes."""
        self.moving.discard(vbucket)
        self.revision += 1
        for node in self.cluster.nodes:
            self.forget(node)

    def list_owned(self, number: int) -> list[int]:
        """Return the vbuckets to replicate from a node."""
        return [vb for vb, place in self.map.items() if place.owner == number and vb not in self.moving]

    def forget(self, node: SimulatedNode) -> None:
        """Send the states to a node again, since it has crashed or a vbucket was moved."""
        number = self.cluster.nodes.index(node)
        self.applied[number] = 0
        self._forgotten[number] += 1
        self._notify()

    def make_address(self, number: int, retry_seconds: float = 0.001) -> Address:
        """Return the address of a node."""
        host, timeout = self.cluster.nodes[number].host, f"{_TIMEOUT:g}"
        options = f"connectTimeout={timeout}&operationTimeout={timeout}&retrySeconds={retry_seconds:g}"
        return parse_address(f"couchbase://{host}:{PORT}/{BUCKET}?{options}")

    def get_endpoint(self, number: int) -> Endpoint:
        """Return host and port of a node."""
        return self._nodes[number].endpoint

    def make_layout(self) -> MapLayout:
        """Return nodes and vbuckets as maps have them: all other nodes have replicas."""
        nodes = range(len(self._nodes))
        owners = [self.map[vbucket].owner for vbucket in sorted(self.map)]
        return MapLayout(self._nodes, tuple((owner, *(each for each in nodes if each != owner)) for owner in owners))

    async def relay(self, source: int, target: int, vbuckets: Collection[int]) -> None:
        """Copy vbuckets of one node to another, as `run_relay` does."""
        name = self._nodes[target].address
        await run_relay(self.make_address(source), self.make_address(target), vbuckets, self.spoil, name)

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
                    if await self._send_states(number):
                        continue
            await self.wait_for_change(_RETRY_SECONDS if self.applied[number] < self.revision else 1e6)

    async def _send_states(self, number: int) -> bool:
        """Send the newest states to a node. Return whether they are all: not those of a move, if it has restarted."""
        node, forgotten = self.cluster.nodes[number], self._forgotten[number]
        process, revision, before = node.process, self.revision, self.applied[number]
        layout = self.make_layout()
        async with NodeControl(self.make_address(number)) as control:
            for vbucket, place in self.map.items():
                if vbucket in self.moving:
                    continue
                owns = place.owner == number
                state = VbucketState.ACTIVE if owns else self.replica_state
                await control.set_chains({vbucket: layout.list_names(vbucket)}, state)
                if owns and place.revision > before and process.is_alive and self.map[vbucket] == place:
                    self.promoted(number, vbucket)
            if not self.moving:
                await self._push_map(control, layout, revision)
        if self.moving and not before:
            return False
        if forgotten == self._forgotten[number] and process.is_alive:
            self.applied[number] = revision
        return True

    async def _push_map(self, control: NodeControl, layout: MapLayout, revision: int) -> None:
        if not self._base:
            base = await control.read_map()
            self._base = {**base, **self._base}  # another node may have answered meanwhile: all maps have one base
        version = PUSHED_EPOCH, revision * _VERSION_STEP
        await control.push_map(make_map_document(self._base, layout, version, control.endpoint))

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
