"""The changes of owners that replicas must have before a map may name them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.cluster.node_failover import read_copies, read_report
from penstock.client.cluster.replica_choice import ReplicaReport
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.replication.map_layout import MapLayout
from penstock.errors import ConnectionClosed
from penstock.wire.codec.constants import VbucketState


class ReplicaGoals:
    """The changes that owners had at the last reading, and whether all replicas have them."""

    def __init__(self, publisher: MapPublisher, layout: MapLayout, vbuckets: Collection[int]) -> None:
        """Create goals without a reading.

        Args:
            publisher: has the controls of the nodes.
            layout: the owners and replicas.
            vbuckets: those whose replicas count. Each has an owner.
        """
        self._publisher = publisher
        self._layout = layout
        self._vbuckets = vbuckets
        self._owned: dict[int, ReplicaReport] = {}

    async def read(self) -> None:
        """Read the changes that the owners have.

        Raises:
            ConnectionClosed: an owner has begun a new branch since the last reading. It has restarted, and may have
                lost changes, and the replication chains that it was sent.
        """
        found: dict[int, ReplicaReport] = {}
        for place, endpoint in enumerate(self._publisher.list_endpoints(self._layout)):
            found |= await self._read(endpoint, {vb for vb in self._vbuckets if self._layout.chains[vb][0] == place})
        for vbucket, owner in found.items():
            known = self._owned.get(vbucket, owner).failover_log[0]
            if owner.failover_log[0] != known:
                raise ConnectionClosed(
                    f"the owner of vbucket {vbucket} has begun branch {owner.failover_log[0].vbuuid}, expected "
                    f"{known.vbuuid} until its replicas are complete"
                )
        self._owned = found

    async def are_reached(self) -> bool:
        """Return whether all replicas have the changes that the owners had at the last reading, on disk too."""
        results = await asyncio.gather(*map(self._has_stored, range(len(self._layout.nodes))))
        return all(results)

    async def _has_stored(self, place: int) -> bool:
        vbuckets = {vb for vb in self._vbuckets if place in self._layout.chains[vb][1:]}
        endpoint = self._publisher.list_endpoints(self._layout)[place]
        copies = await self._read(endpoint, vbuckets, VbucketState.REPLICA)
        return copies.keys() == vbuckets and all(copy.has_stored(self._owned[vb]) for vb, copy in copies.items())

    async def _read(
        self, endpoint: Endpoint, vbuckets: Collection[int], state: VbucketState = VbucketState.ACTIVE
    ) -> dict[int, ReplicaReport]:
        """Return the reports of a node about those of the vbuckets that it has in a state."""
        if not vbuckets:
            return {}
        control = self._publisher.get_control(endpoint)
        report = await read_report(control)
        return await read_copies(control, report, {vb for vb in vbuckets if report.has(vb, state)})
