"""The relay of an orchestrator: the product's, for one direction between two nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from penstock.client.connect.address import Address
from penstock.client.relays.node_relay import DcpNodeRelay

__all__ = ["run_relay"]


async def run_relay(
    source: Address,
    target: Address,
    vbuckets: Collection[int],
    spoil: Callable[[bytes], bytes] | None,
    consumer_name: str,
) -> None:
    """Copy vbuckets of one node to another, until a stream or a connection ends or the caller cancels.

    Args:
        source: the node with the active vbuckets.
        target: the other node.
        vbuckets: the vbuckets.
        spoil: changes the bytes that are passed on; None: nothing does.
        consumer_name: the name of the target in the topology of vbuckets.

    Raises:
        OSError: a node refused the connection.
        Error: a node refused a request, or a stream or a connection has ended.
    """
    lost: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def end(vbucket: int, reason: Exception) -> None:
        if not lost.done():
            lost.set_exception(reason)

    relay = await DcpNodeRelay.open(source, source.hosts[0], target, end, consumer_name=consumer_name)
    if spoil is not None:
        send, change = relay.relay.target.transport.send, spoil
        relay.relay.target.send = lambda data: send(change(bytes(data)))  # type: ignore[method-assign]
    closed: asyncio.Future[object] = asyncio.ensure_future(relay.wait_closed())
    try:
        for error in (await relay.start(vbuckets)).values():
            if error is not None:
                raise error
        await asyncio.wait([lost, closed], return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            lost.result()
    finally:
        closed.cancel()
        lost.cancel()
        await relay.relay.close()
