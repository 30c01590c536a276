"""Members that lose their lease: they refuse documents, and serve them again."""

import signal
from contextlib import ExitStack

import pytest

from penstock.wire.codec.constants import DurabilityLevel
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.frame_info import Durability, RequestInfos, pack_request_infos
from penstock.wire.messages.kv import Delete, Get, GetVbucket, Set
from tests.node.membership.clusters import BUCKETS, open_member, run_cluster
from tests.node.membership.member_process import run_members, wait_for
from tests.node.wire_client import connected

DURABLE = pack_request_infos(RequestInfos(durability=Durability(DurabilityLevel.MAJORITY, None)))
REFUSED = [Set(key=b"k", value=b"v"), Get(key=b"k"), Delete(key=b"k"), Set(key=b"k", value=b"v", framing=DURABLE)]


def test_minority_refuses_documents_and_reports_why():
    with ExitStack() as stack:
        (first,) = stack.enter_context(run_cluster(stack, 1, lease_seconds=1.0))
        client = stack.enter_context(connected(first.node, "beer"))
        with open_member(first), open_member(first):
            wait_for(lambda: client.status(Set(key=b"k", value=b"v")) == Status.SUCCESS, "a lease of three nodes")
        wait_for(lambda: client.status(Get(key=b"k")) == Status.NOT_MY_VBUCKET, "the end of the lease")
        assert {client.status(request) for request in REFUSED} == {Status.NOT_MY_VBUCKET}
        assert client.status(GetVbucket()) == Status.SUCCESS
        stats = client.stats("lease")
        assert (stats["lease_state"], stats["lease_serves_documents"]) == ("lapsed", "false")
        assert "majority" in stats["lease_reason"]
        own = first.get_json("/pools/default")["nodes"][0]
        assert own["lease"] == {"state": "lapsed", "reason": stats["lease_reason"]}
        assert first.get_json(f"{BUCKETS}/beer")["basicStats"]["itemCount"] == 1


@pytest.mark.process
def test_node_of_two_serves_its_vbuckets_while_the_other_one_is_away(tmp_path):
    with run_members(tmp_path, 2, "--lease-seconds", 2) as (first, second):
        with connected(first.node, "default") as client:
            wait_for(lambda: client.status(Set(key=b"k", value=b"v")) == Status.SUCCESS, "the first member serves")
        second.kill()
        with connected(first.node, "default") as client:
            wait_for(lambda: client.stats("lease")["lease_state"] == "alone", "the lease has ended")
            assert client.status(Set(key=b"k", value=b"alone")) == Status.SUCCESS
        assert first.web.post(BUCKETS, name="wine", ramQuota=100).status == 503
        first.kill()
        first.start()
        with connected(first.node, "default") as client:
            wait_for(lambda: client.get(b"k").value == b"alone", "it serves after a restart")
        second.start()
        assert first.web.post(BUCKETS, name="wine", ramQuota=100).status == 202


@pytest.mark.process
def test_stopped_process_refuses_the_requests_of_the_pause(tmp_path):
    with run_members(tmp_path, 3, "--lease-seconds", 2) as members:
        first, second = members[:2]
        with connected(first.node, "default") as client:
            wait_for(lambda: client.status(Set(key=b"k", value=b"old")) == Status.SUCCESS, "the lease")
            first.process.send_signal(signal.SIGSTOP)
            client.send(Set(key=b"k", value=b"new"))

            def is_missed():
                nodes = second.web.get_json("/pools/default")["nodes"]
                return nodes[0]["status"] == "unhealthy"

            wait_for(is_missed, "the others miss the node")  # longer than the lease
            first.process.send_signal(signal.SIGCONT)
            assert client.receive().specific == Status.NOT_MY_VBUCKET
            found = wait_for(lambda: (reply := client.get(b"k")).specific == Status.SUCCESS and reply, "the lease")
            assert found.value == b"old"
