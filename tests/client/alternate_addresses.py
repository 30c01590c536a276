"""A cluster of two nodes with alternate addresses: the ports of proxies."""

from contextlib import ExitStack, contextmanager

from penstock.client.blocking import LoopThread
from penstock.node.cluster.own_map import NodePlace
from penstock.pytest.fault_proxy import FaultProxy
from tests.node.balanced_nodes import balance, open_node

ALTERNATE_PATH = "/node/controller/setupAlternateAddresses/external"


class AlternateCluster:
    """Two nodes that share the bucket `beer`, each with a proxy for data and for HTTP.

    Attributes:
        webs: the HTTP clients of the nodes.
        kv: the proxies of the data ports.
        mgmt: the proxies of the HTTP ports.
    """

    def __init__(self, stack, hostname):
        loop = stack.enter_context(LoopThread("proxies"))
        # With a host of their own: otherwise a client outside would take the host that it has dialled for theirs.
        self.webs = [stack.enter_context(open_node(place=NodePlace(host="127.0.0.1"))) for _ in range(2)]
        self.kv, self.mgmt = (
            [stack.enter_context(FaultProxy(("127.0.0.1", port), loop)) for port in ports]
            for ports in ([w.node.kv_port for w in self.webs], [w.node.http_port for w in self.webs])
        )
        for web, kv, mgmt in zip(self.webs, self.kv, self.mgmt, strict=True):
            answer = web.ask("PUT", ALTERNATE_PATH, {"hostname": hostname, "kv": kv.port, "mgmt": mgmt.port})
            assert answer.status == 200, answer.body
        balance([web.node for web in self.webs])

    @property
    def accepted(self):
        """The number of connections that each data proxy has got."""
        return [proxy.accepted for proxy in self.kv]


@contextmanager
def run_alternate_cluster(hostname="127.0.0.1"):
    """Run the cluster; all its alternate addresses have this host."""
    with ExitStack() as stack:
        yield AlternateCluster(stack, hostname)
