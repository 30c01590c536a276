"""Nodes of clusters for tests, each with its HTTP client."""

from contextlib import contextmanager

from penstock.node import Node
from tests.node.http.web_client import WebClient

__all__ = ["BUCKETS", "ClusterNodes", "list_names", "open_member", "run_cluster"]

BUCKETS = "/pools/default/buckets"
VBUCKETS = 16


class ClusterNodes(list[WebClient]):
    """The HTTP clients of the members. The first node has formed the cluster."""

    @property
    def names(self):
        """Return the names of the nodes, as ns_server's clients send them."""
        return [node["otpNode"] for node in self[0].get_json("/pools/default")["nodes"]]


def list_names(web):
    return {bucket["name"] for bucket in web.get_json(BUCKETS)}


@contextmanager
def open_member(first, login=("", ""), **options):
    """Run a node that joins the cluster of a node."""
    join = f"http://127.0.0.1:{first.node.http_port}"
    with Node.running(vbuckets=VBUCKETS, join=join, join_login=login, **options) as node:
        yield WebClient(node, login if login[0] else None)


@contextmanager
def run_cluster(stack, count, directory=None, **options):
    """Run a node with the bucket `beer` and others that join it; their data is in subdirectories, if there is one."""

    def place(number):
        return {} if directory is None else {"data_dir": directory / str(number)}

    nodes = ClusterNodes()
    nodes.append(WebClient(stack.enter_context(Node.running(["beer"], vbuckets=VBUCKETS, **place(0), **options))))
    for number in range(1, count):
        nodes.append(stack.enter_context(open_member(nodes[0], **place(number), **options)))
    yield nodes
