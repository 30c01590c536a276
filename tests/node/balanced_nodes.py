"""Nodes that share the bucket `beer`: an orchestrator has spread its vbuckets over them."""

import asyncio
from contextlib import contextmanager

from penstock.client.cluster.balance_moves import plan_moves
from penstock.client.cluster.map_publisher import MapPublisher
from penstock.client.cluster.vbucket_mover import VbucketMover
from penstock.client.connect.address import parse_address
from penstock.node import Node
from tests.node.http.web_client import WebClient
from tests.patience import PATIENCE

__all__ = ["BUCKETS", "VBUCKETS", "balance", "open_node", "run_balanced_nodes"]

BUCKETS = "/pools/default/buckets"
VBUCKETS = 16


@contextmanager
def open_node(**options):
    """Run a node that stands alone, with an empty bucket."""
    with Node.running(["beer"], vbuckets=VBUCKETS, **options) as node:
        yield WebClient(node)


def balance(*webs):
    """Spread the vbuckets of `beer` evenly over nodes. The first one has the documents."""

    async def run():
        addresses = [parse_address(web.node.url("beer")) for web in webs]
        publisher = MapPublisher(addresses[0])
        try:
            for address in addresses:
                await publisher.load(address.hosts[0])
            mover = VbucketMover(publisher, addresses[0])
            for moves in plan_moves(publisher):
                await mover.move(*moves)
        finally:
            await publisher.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


@contextmanager
def run_balanced_nodes(stack, count):
    """Run nodes with equal shares of the vbuckets of `beer`."""
    webs = [stack.enter_context(open_node()) for _ in range(count)]
    balance(*webs)
    yield webs
