"""Moves of active vbuckets between nodes while clients use them, in two phases as ns_server does it.

First the target becomes a replica, which takes most of the time while clients go on. Then it takes the vbucket over:
the source sends the last changes, stops to serve, and hands the ownership to the target. All nodes get the new map.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import NamedTuple

from penstock.client.connect.address import Address
from penstock.client.connect.cluster_map import Endpoint
from penstock.client.connect.retry import run_with_retry
from penstock.client.replication.map_publisher import MapPublisher
from penstock.client.replication.node_control import NodeControl
from penstock.client.replication.node_relay import DcpNodeRelay
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.client.replication.target_states import find_new_replicas
from penstock.errors import ConnectionClosed, OperationTimeout, UsageError
from penstock.wire.codec.constants import Dialect, VbucketState
from penstock.wire.codec.flags import StreamFlag

__all__ = ["MovedVbucket", "VbucketMover"]

_TAKEOVER_SECONDS = 300.0
"""Time for one takeover after the replica has caught up."""

_POLL_SECONDS = 0.05


class MovedVbucket(NamedTuple):
    """A vbucket that has moved.

    Attributes:
        vbucket: its number.
        source: the former owner.
        target: the owner.
        seconds: duration of the takeover, in which clients may be refused.
    """

    vbucket: int
    source: Endpoint
    target: Endpoint
    seconds: float


class VbucketMover:
    """Moves vbuckets of one bucket.

    Args:
        publisher: the newest map of the bucket.
        address: the bucket; its options and credentials are used for all nodes.
        report: called after each move.
    """

    def __init__(
        self, publisher: MapPublisher, address: Address, report: Callable[[MovedVbucket], None] = lambda moved: None
    ) -> None:
        """Create a mover without connections."""
        self._publisher = publisher
        self._address = address
        self._report = report

    async def move(self, vbuckets: Collection[int], source: Endpoint, target: Endpoint) -> None:
        """Move vbuckets from one node to another.

        Args:
            vbuckets: vbuckets that the source owns.
            source: their owner.
            target: another node of the publisher's map.

        Raises:
            UsageError: a node is not in the map, the source does not have a vbucket active, or the target has changes
                of its own.
            ConnectionClosed: a connection was lost during a takeover. The source owns the vbucket again.
        """
        for endpoint in (source, target):
            self._publisher.layout.require_node(endpoint)
        old, new = self._publisher.get_control(source), self._publisher.get_control(target)
        states = await old.read_states()
        for vbucket in sorted(vbuckets):
            if states.get(vbucket) is not VbucketState.ACTIVE:
                found = states[vbucket].name.lower() if vbucket in states else "missing"
                raise UsageError(f"vbucket {vbucket} is {found} at {source[0]}:{source[1]}, expected active")
        await self._release_strays(new)
        options = ReplicationOptions(vbuckets=sorted(vbuckets), protocol=Dialect.DCP, until_caught_up=True)
        async with Replicator(old.address, new.address, options) as replicator:
            await replicator.run()
        for vbucket in sorted(vbuckets):
            await self._take_over(vbucket, old, new)

    async def _release_strays(self, new: NodeControl) -> None:
        """Delete empty active vbuckets of the target that belong to other nodes: a new bucket has all of them.

        Raises:
            UsageError: such a vbucket has changes, which would be lost.
        """
        layout = self._publisher.layout
        owned = layout.list_owned(layout.require_node(new.endpoint))
        states = await new.read_states()
        strays = {vb for vb, state in states.items() if state is VbucketState.ACTIVE}.difference(owned)
        if strays:
            find_new_replicas(strays, states, await new.read_seqnos(), overwrite=False)
            await new.delete_vbuckets(strays)

    async def _take_over(self, vbucket: int, old: NodeControl, new: NodeControl) -> None:
        """Take one vbucket over, publish the map, and delete the vbucket at its former owner."""
        clock = asyncio.get_running_loop().time
        started = clock()
        layout = self._publisher.layout
        layout = layout.set_owners({vbucket: layout.require_node(new.endpoint)})
        chains = {vbucket: layout.list_names(vbucket)}
        await new.set_chains(chains, VbucketState.REPLICA)  # for the first writes after the takeover
        await run_with_retry(lambda: self._run_takeover(vbucket, old, new), old.address, lambda: True)
        await new.set_chains(chains, VbucketState.ACTIVE)  # again, for servers that refuse it before
        await self._publisher.publish(layout, new.endpoint)
        self._report(MovedVbucket(vbucket, old.endpoint, new.endpoint, clock() - started))
        await old.delete_vbuckets([vbucket])

    async def _run_takeover(self, vbucket: int, old: NodeControl, new: NodeControl) -> None:
        ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

        def end(number: int, reason: Exception) -> None:
            if number == vbucket and not ended.done():
                ended.set_result(reason)

        layout = self._publisher.layout
        name = layout.nodes[layout.require_node(new.endpoint)].address
        relay = await DcpNodeRelay.open(old.address, old.endpoint, new.address, end, name)
        closing = asyncio.ensure_future(relay.wait_closed())
        try:
            refusal = (await relay.add_streams([vbucket], StreamFlag.TAKEOVER))[vbucket]
            if refusal is not None:
                raise refusal
            await asyncio.wait({ended, closing}, timeout=_TAKEOVER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            await relay.relay.close()
            await self._settle(vbucket, old, new, relay.name)
        if (await new.read_states()).get(vbucket) is not VbucketState.ACTIVE:
            reason = ended.result() if ended.done() else OperationTimeout("the takeover did not end")
            raise ConnectionClosed(f"vbucket {vbucket} was not taken over: {reason}")

    async def _settle(self, vbucket: int, old: NodeControl, new: NodeControl, name: str) -> None:
        """Give the vbucket back to its owner if the takeover has not ended."""
        if (await new.read_states()).get(vbucket) is VbucketState.ACTIVE:
            return
        # The target may still read the message that makes the vbucket active. Then both would own it.
        await wait_until_closed(new, name)
        if (await new.read_states()).get(vbucket) is VbucketState.ACTIVE:
            return
        await new.set_states([vbucket], VbucketState.REPLICA)
        await old.set_states([vbucket], VbucketState.ACTIVE)


async def wait_until_closed(node: NodeControl, name: str) -> None:
    """Wait until a node has ended the change-stream connections of a name. Raises OperationTimeout."""
    prefix = f"eq_dcpq:{name}:"
    for _ in range(round(node.address.options.operation_timeout / _POLL_SECONDS) + 1):
        if not any(stat.startswith(prefix) for stat in await node.read_stats("dcp")):
            return
        await asyncio.sleep(_POLL_SECONDS)
    raise OperationTimeout(f"{node.address} does not end the connection {name}")
