"""The settings of the automatic failover, on real nodes."""

from contextlib import ExitStack

from tests.node.http.web_client import WebClient
from tests.node.membership.clusters import open_member, run_cluster
from tests.node.membership.member_process import wait_for

SETTINGS = "/settings/autoFailover"


def list_failed(web: WebClient):
    """Return the numbers of the nodes that were failed over."""
    nodes = web.get_json("/pools/default")["nodes"]
    return [number for number, node in enumerate(nodes) if node["clusterMembership"] == "inactiveFailed"]


def test_as_many_nodes_are_failed_over_as_the_settings_permit():
    with ExitStack() as stack:
        (first,) = stack.enter_context(run_cluster(stack, 1, lease_seconds=1.0))
        second = stack.enter_context(open_member(first))
        assert second.get_json(SETTINGS)["enabled"] is False
        with open_member(first):
            with open_member(first):
                refused = first.post(SETTINGS, enabled="true", timeout="1", maxCount="1")
                assert (refused.status, b"expected 1.25" in refused.body) == (400, True)
                assert first.post(SETTINGS, enabled="true", timeout="2", maxCount="1").status == 200
                wait_for(lambda: second.get_json(SETTINGS)["timeout"] == 2.0, "the settings on the other node")
            wait_for(lambda: list_failed(second) == [3], "the first failover")
            assert second.get_json(SETTINGS) == {"enabled": True, "timeout": 2.0, "maxCount": 1, "count": 1}
        assert second.post(SETTINGS, enabled="true", maxCount="2").status == 200
        wait_for(lambda: list_failed(first) == [2, 3], "the second failover")
        assert first.get_json(SETTINGS) == {"enabled": True, "timeout": 2.0, "maxCount": 2, "count": 2}
