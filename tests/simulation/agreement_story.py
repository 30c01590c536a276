"""The story of nodes that agree on one document: they join, leave and change it through partitions and crashes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

import msgspec

from penstock.errors import Error
from penstock.node import Node
from penstock.node.agreement.revisions import Revision
from penstock.node.cluster.topology import NodePlace
from penstock.node.membership.cluster_member import ClusterMember
from penstock.node.membership.node_requests import NodeRequests
from penstock.node.transport.machine import Machine
from penstock.wire.codec.constants import VbucketState
from tests.simulation.cluster import BUCKET, PORT, SimulatedNode
from tests.simulation.schedule import Schedule
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.world import World

__all__ = ["AgreementStory"]

_HTTP_PORT = 8091
_LEASE_SECONDS = 1.0
_CHANGE_SECONDS = 2.0
_REQUEST_SECONDS = 5.0
_VBUCKETS = 4
_WATCH_SECONDS = 0.05
_SLACK_SECONDS = 0.2
"""Time in which requests that were under way before a partition may still arrive."""


class AgreementStory(World):
    """Three nodes of one cluster. A client changes the document over HTTP at any of them.

    Attributes:
        decided: number of a revision -> its members and content, as the first node has reported it.
        created: the collections whose creation was acknowledged.
        refused: number of refused changes.
    """

    def __init__(self, schedule: Schedule, loop: VirtualLoop) -> None:
        names = ("watcher", "administrator")
        super().__init__(schedule, loop, [_VBUCKETS] * schedule.nodes, names)
        self.cluster.open_node = self._open_node
        self.decided: dict[int, bytes] = {}
        self.created: set[str] = set()
        self.refused = 0
        self._requests = NodeRequests(None, allow_plain=True)
        self._isolated_at: dict[int, float] = {}
        self._known: dict[int, Revision] = {}

    def begin(self) -> list[asyncio.Task[Any]]:
        """Begin to watch the rules, and to change the document."""
        self.loop.spawn(self.clients[0], self._watch())
        return [self.loop.spawn(self.clients[1], self._change())]

    async def is_at_rest(self) -> bool:
        """Return whether all nodes are members with a lease, and know the same revision."""
        members = [self._find_member(node) for node in self.cluster.nodes]
        known = {member.state.revision.number for member in members if member is not None}
        return None not in members and len(known) == 1 and all(map(self._serves, self.cluster.nodes))

    def check(self) -> None:
        """Check that each node has all acknowledged collections, and that the document lists all nodes."""
        self._check_rules()
        for node in self.cluster.nodes:
            member = self._find_member(node)
            if member is None or node.node is None:
                self.problems.append(f"{node.name} is no member")
                continue
            if len(member.state.document.members) != len(self.cluster.nodes):
                self.problems.append(f"{node.name} knows the members {member.state.document.members}")
            manifest = node.node.buckets[BUCKET].store.manifests.current
            missing = {name for name in self.created if manifest.find("_default", name) is None}
            self.problems += [f"{node.name} has no collections {missing}"] if missing else []

    def describe_state(self) -> str:
        """Return revision and lease of each node."""
        found = [(node, self._find_member(node)) for node in self.cluster.nodes]
        return str(
            [
                (node.name, None)
                if member is None
                else (node.name, member.state.revision.number, member.state.lease.reason)
                for node, member in found
            ]
        )

    def count(self) -> dict[str, int]:
        """Return the numbers of revisions and changes."""
        return {"revisions": len(self.decided), "created": len(self.created), "refused": self.refused}

    def record_segment(self, connection: str, nbytes: int, checksum: int) -> None:
        """Add a segment to the trace, without its checksum: proofs contain secrets of the operating system."""
        self.trace.append((self.loop.time(), connection, nbytes))

    # Faults

    async def isolate(self, node: int, seconds: float) -> None:
        """Cut a node off from all other nodes for some time."""
        links = [self.find_link((node, other)) for other in range(self.schedule.nodes) if other != node]
        for link in links:
            link.cut()
        await asyncio.sleep(seconds)
        for link in links:
            link.heal()

    async def leave(self, node: int) -> None:
        """Remove a node from the cluster, and let it join again."""
        found = self.cluster.nodes[node]
        member = self._find_member(found)
        if member is None:
            return
        name = next((each.otp_name for each in member.state.document.nodes if each.id == member.state.node), "")
        await self._post(self.cluster.nodes[0], "/controller/ejectNode", otpNode=name)
        for _ in range(100):
            if found.node is None or found.node.cluster.member is None:
                break
            await asyncio.sleep(0.1)
        if found.node is not None and found.node.cluster.member is None:
            self.cluster.crash(found, power=False, silent=False)
            await self.restart(found, 0.1)

    # Work

    async def _open_node(self, node: SimulatedNode, machine: Machine) -> Node:
        first = self.cluster.nodes[0]
        options: dict[str, Any] = {"data_dir": node.data_dir, "machine": machine, "http_port": _HTTP_PORT}
        options |= {"lease_seconds": _LEASE_SECONDS, "change_timeout": _CHANGE_SECONDS}
        if node is first:
            return await Node.start(node.host, PORT, [BUCKET], _VBUCKETS, **options)
        while True:
            with suppress(OSError, Error):
                return await Node.start(node.host, PORT, join=f"http://{first.host}:{_HTTP_PORT}", **options)
            await asyncio.sleep(0.5)

    async def _change(self) -> None:
        random = self.clients[1].random
        for number in range(self.schedule.writes):
            await asyncio.sleep(random.expovariate(self.schedule.writes / self.schedule.seconds))
            name, node = f"c{number}", random.choice(self.cluster.nodes)
            path = f"/pools/default/buckets/{BUCKET}/scopes/_default/collections"
            if await self._post(node, path, name=name):
                self.created.add(name)
            else:
                self.refused += 1

    async def _post(self, node: SimulatedNode, path: str, **form: str) -> bool:
        """Send a form to a node, and return whether it has accepted the form."""
        headers = {"content-type": "application/x-www-form-urlencoded"}
        place = NodePlace(host=node.host, mgmt=_HTTP_PORT)
        try:
            text = urlencode(form).encode()
            response = await self._requests.post(place, path, text, headers, seconds=_REQUEST_SECONDS)
        except (OSError, Error):
            return False
        return response.status < 300

    # Rules

    @staticmethod
    def _find_member(node: SimulatedNode) -> ClusterMember | None:
        found = None if node.node is None else node.node.cluster.member
        return None if found is None or found.state.is_joining else found

    @staticmethod
    def _serves(node: SimulatedNode) -> bool:
        return node.node is not None and node.node.storage.lease.is_valid()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            self._check_rules()

    def _check_rules(self) -> None:
        owners: dict[int, list[str]] = {}
        for number, node in enumerate(self.cluster.nodes):
            member = self._find_member(node)
            if member is None:
                continue
            revision = member.state.revision
            if self._known.get(number) is not revision:
                self._known[number] = revision
                self._check_revision(node, revision)
            serves = self._serves(node)
            if serves and self._is_isolated(number) and len(revision.members) >= len(self.cluster.nodes):
                self.problems.append(f"{node.name} serves documents without a majority")
            for vbucket in node.vbuckets if serves and node.node and BUCKET in node.node.buckets else ():
                if vbucket.history.state is VbucketState.ACTIVE:
                    owners.setdefault(vbucket.id, []).append(node.name)
        self.problems += [
            f"vbucket {vbucket} is active on {names}" for vbucket, names in owners.items() if len(names) > 1
        ]

    def _check_revision(self, node: SimulatedNode, revision: Revision) -> None:
        decision = msgspec.json.encode((revision.members, revision.content), order="sorted")
        if self.decided.setdefault(revision.number, decision) != decision:
            self.problems.append(
                f"revision {revision.number} is {decision!r} on {node.name}, and was {self.decided[revision.number]!r}"
            )

    def _is_isolated(self, number: int) -> bool:
        """Return whether a node has been cut off from all other nodes for longer than its lease."""
        others = [other for other in range(self.schedule.nodes) if other != number]
        if not all(self.find_link((number, other)).is_cut for other in others):
            self._isolated_at.pop(number, None)
            return False
        since = self._isolated_at.setdefault(number, self.loop.time())
        return self.loop.time() - since > _LEASE_SECONDS + _SLACK_SECONDS
