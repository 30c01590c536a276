"""Processes that are killed and failed over by the others."""

import pytest

from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Set
from tests.node.membership.clusters import BUCKETS
from tests.node.membership.failovers import (
    DOCUMENTS,
    find_owner,
    list_nodes,
    make_replicas,
    read_all,
    wait_failed_over,
    write_documents,
)
from tests.node.membership.member_process import run_members, wait_for
from tests.node.wire_client import connected


@pytest.mark.process
def test_killed_node_is_failed_over_and_comes_back(tmp_path):
    with run_members(tmp_path, 3, "--lease-seconds", 2, "--auto-failover-seconds", 4) as members:
        first, second, third = members
        write_documents(first, range(DOCUMENTS))
        make_replicas(first, members[1:])
        settings = second.web.get_json("/settings/autoFailover")
        assert settings == {"enabled": True, "timeout": 4.0, "maxCount": 1, "count": 0}

        first.kill()
        wait_failed_over(0, third)
        wait_for(lambda: find_owner(second, 0) == find_owner(third, 0) != 0, "the map")
        expected = {number: b"%d" % number for number in range(DOCUMENTS)}
        wait_for(lambda: read_all(members) == expected, "the documents on the new owners")
        owner = members[find_owner(third, 0)]
        with connected(owner.node, "default") as client:
            assert client.stats("failovers 0")["vb_0:num_entries"] == "2"
            wait_for(lambda: client.status(Set(key=b"new", value=b"v")) == Status.SUCCESS, "a write")
        assert third.web.get_json("/settings/autoFailover")["count"] == 1

        first.start()
        with connected(first.node, "default") as client:
            wait_for(lambda: client.stats("lease")["lease_state"] == "excluded", "the node learns its failover")
            assert client.get(b"0").specific == Status.NOT_MY_VBUCKET
            assert first.web.post("/settings/autoFailover/resetCount").status == 200
            name = list_nodes(third)[0]["otpNode"]
            assert third.web.post("/controller/reAddNode", otpNode=name).status == 200
            wait_for(lambda: client.stats("lease")["lease_serves_documents"] == "true", "the node is a member again")
            assert client.get(b"0").specific == Status.NOT_MY_VBUCKET
        assert list_nodes(third)[0]["clusterMembership"] == "inactiveAdded"
        assert third.web.post("/controller/reAddNode", otpNode=name).status == 400
        assert third.web.post(BUCKETS, name="wine", ramQuota=100).status == 202
