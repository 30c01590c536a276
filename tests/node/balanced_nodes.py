"""Nodes that share a bucket: the orchestrator of `penstock cluster` has spread its vbuckets over them."""

import asyncio
from contextlib import contextmanager

from penstock.client.blocking import LoopThread
from penstock.client.cluster.cluster_file import BucketEntry, ClusterFile, NodeEntry
from penstock.client.cluster.orchestrator import Orchestrator
from penstock.node import Node
from tests.node.http.web_client import WebClient
from tests.patience import PATIENCE

BUCKETS = "/pools/default/buckets"
VBUCKETS = 16


def apply_bucket(ports, name, vbuckets):
    """Create a bucket on nodes that lack it, and spread its vbuckets evenly over all.

    Args:
        ports: for each node, the ports for data and for HTTP. The first node has the documents.
        name: the name of the bucket.
        vbuckets: the number of its vbuckets.
    """
    nodes = tuple(NodeEntry(url=f"couchbase://127.0.0.1:{kv}", http=f"127.0.0.1:{http}") for kv, http in ports)
    definition = ClusterFile("the test", nodes, (BucketEntry(name=name, vbuckets=vbuckets, replicas=0),))
    with LoopThread("orchestrator") as loop:  # a test may have a loop of its own
        loop.run(asyncio.wait_for(Orchestrator(definition).apply(lambda difference: None), PATIENCE))


def balance(nodes, name="beer"):
    """Spread the vbuckets of a bucket evenly over nodes. The first one has the documents."""
    vbuckets = len(nodes[0].buckets[name].store.vbuckets)
    apply_bucket([(node.place.kv, node.place.mgmt) for node in nodes], name, vbuckets)


@contextmanager
def open_node(**options):
    """Run a node that stands alone, with an empty bucket."""
    with Node.running(["beer"], vbuckets=VBUCKETS, **options) as node:
        yield WebClient(node)


def run_nodes(stack, count, name="beer", vbuckets=VBUCKETS):
    """Run nodes with equal shares of the vbuckets of a bucket."""
    nodes = [stack.enter_context(Node.running([name], vbuckets=vbuckets)) for _ in range(count)]
    balance(nodes, name)
    return nodes
