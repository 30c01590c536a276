"""Processes that were failed over, and are members again: they roll back and follow the new owners."""

import asyncio

import pytest

from penstock.node.agreement.agreement_messages import Learn
from penstock.node.membership.member_file import MemberFile
from penstock.store.disk.bucket_files import Directory
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import GetReplica
from tests.node.membership.failovers import (
    DOCUMENTS,
    VBUCKETS,
    copy_vbuckets,
    find_owner,
    list_nodes,
    make_replicas,
    make_state,
    wait_failed_over,
    write_documents,
)
from tests.node.membership.member_process import run_members, wait_for
from tests.node.wire_client import connected

NEW = range(DOCUMENTS, DOCUMENTS + VBUCKETS)


@pytest.fixture
def members(tmp_path):
    with run_members(tmp_path, 3, "--lease-seconds", 2, "--auto-failover-seconds", 4) as started:
        yield started


def fail_over_first(members):
    """Fail the first member over, with changes that only it has. Then let it be a member again, while it is away."""
    first, second, third = members
    write_documents(first, range(DOCUMENTS))
    make_replicas(first, [second, third])
    write_documents(first, [*range(VBUCKETS), *NEW], b"lost %d")
    wait_for(lambda: read_states(first, "persisted_seqno") == read_states(first, "high_seqno"), "the disk")
    first.kill()
    wait_failed_over(0, third)
    name = list_nodes(third)[0]["otpNode"]
    assert third.web.post("/controller/reAddNode", otpNode=name).status == 200


def read_states(member, detail=""):
    """Return by vbucket its state, or a detail of it."""
    with connected(member.node, "default") as client:
        stats = client.stats("vbucket-details" if detail else "vbucket")
    return [stats[f"vb_{vbucket}:{detail}" if detail else f"vb_{vbucket}"] for vbucket in range(VBUCKETS)]


def read_member(member, directory):
    """Return the stored state of a member."""
    found = MemberFile(Directory(directory / str(member))).read()
    assert found is not None
    return found


def store_newest_document(member, other, directory):
    """Let the stored state of a killed member learn the newest document, as if it had ended before using it."""
    newest = read_member(other, directory).state.revision
    state = make_state(read_member(member, directory), MemberFile(Directory(directory / str(member))))
    asyncio.run(state.answer(Learn(newest)))
    assert read_member(member, directory).state.revision == newest


def read_replicas(member):
    """Return the values of the replicas of a member, None for missing documents."""
    found = {}
    with connected(member.node, "default") as client:
        for number in range(NEW.stop):
            reply = client.ask(GetReplica(key=b"%d" % number, vbucket=number % VBUCKETS))
            found[number] = reply.value if reply.specific == Status.SUCCESS else None
    return found


@pytest.mark.process
def test_readded_member_rolls_back_the_changes_that_only_it_had(members):
    fail_over_first(members)
    first, _, third = members
    first.start()
    wait_for(lambda: read_states(first) == ["dead"] * VBUCKETS, "the member learns that it lost its vbuckets")
    owners = [find_owner(third, vbucket) for vbucket in range(VBUCKETS)]
    write_documents(members[owners[0]], range(0, DOCUMENTS, VBUCKETS), b"after %d")
    for owner in set(owners):
        copy_vbuckets(members[owner], first, [number for number in range(VBUCKETS) if owners[number] == owner])
    expected = {number: b"%d" % number for number in range(DOCUMENTS)} | dict.fromkeys(NEW)
    expected |= {number: b"after %d" % number for number in range(0, DOCUMENTS, VBUCKETS)}
    assert read_replicas(first) == expected
    assert read_states(first) == ["replica"] * VBUCKETS


@pytest.mark.process
def test_member_that_ended_before_it_used_the_document_gives_its_vbuckets_up(members, tmp_path):
    fail_over_first(members)
    first, second, _ = members
    store_newest_document(0, 1, tmp_path)
    first.start()
    wait_for(lambda: read_states(first) == ["dead"] * VBUCKETS, "the vbuckets are dead")
    first.kill()
    first.start()
    assert read_states(first) == ["dead"] * VBUCKETS
    assert first.web.get_json("/pools/default")["nodes"][0]["clusterMembership"] == "inactiveAdded"
    assert not read_member(0, tmp_path).lost
    assert read_states(second) != ["dead"] * VBUCKETS
