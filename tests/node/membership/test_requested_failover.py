"""A failover that an administrator requests: of a member that answers, and of one that does not."""

import pytest

from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Set
from tests.node.membership.failovers import (
    DOCUMENTS,
    list_nodes,
    make_replicas,
    read_all,
    write_documents,
)
from tests.node.membership.member_process import run_members, wait_for
from tests.node.wire_client import connected


def fail_over(member, number):
    name = list_nodes(member)[number]["otpNode"]
    return member.web.post("/controller/failOver", otpNode=name)


def list_memberships(member):
    return [node["clusterMembership"] for node in list_nodes(member)]


@pytest.mark.process
@pytest.mark.long
def test_member_that_answers_gives_its_vbuckets_up_and_a_killed_one_follows(tmp_path):
    with run_members(tmp_path, 3, "--lease-seconds", 1) as members:
        first, second, third = members
        write_documents(first, range(DOCUMENTS))
        make_replicas(first, [second, third])
        assert fail_over(second, 1).status == 400  # itself
        assert fail_over(second, 0).status == 200
        assert list_memberships(third) == ["inactiveFailed", "active", "active"]
        with connected(first.node, "default") as client:
            assert client.stats("lease")["lease_state"] == "excluded"
            assert client.status(Set(key=b"new", value=b"v")) == Status.NOT_MY_VBUCKET
            assert set(client.stats("vbucket").values()) == {"dead"}
        expected = {number: b"%d" % number for number in range(DOCUMENTS)}
        wait_for(lambda: read_all(members) == expected, "the documents on the new owners")
        assert fail_over(second, 0).status == 400  # again
        assert second.web.get_json("/settings/autoFailover")["count"] == 0

        name = list_nodes(third)[0]["otpNode"]
        assert third.web.post("/controller/reAddNode", otpNode=name).status == 200
        third.kill()
        assert fail_over(first, 2).status == 200
        assert list_memberships(second) == ["inactiveAdded", "active", "inactiveFailed"]
        wait_for(lambda: read_all([first, second]) == expected, "the documents on the last owner")
        refused = fail_over(first, 1)
        assert (refused.status, b"has 0 replicas, expected 1" in refused.body) == (400, True)
        for wrong in ({"otpNode": "ns_1@nowhere"}, {"otpNode": name, "allowUnsafe": "true"}):
            assert first.web.post("/controller/failOver", **wrong).status == 400
