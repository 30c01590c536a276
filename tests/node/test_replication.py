"""Replication between two nodes over DCP, through a proxy of frames: the copy has the same history."""

import asyncio

import pytest

from penstock.node import Node
from penstock.wire.codec.constants import Feature, VbucketState
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import SetVbucket
from tests.node.frame_proxy import replicating
from tests.node.manifests import ALE, ALES, DEFAULT, LAGER, LAGERS, make_beers, make_key, set_scopes
from tests.node.test_follow import VBUCKETS, run_upstream
from tests.node.test_follow_collections import (
    get_history,
    get_manifest,
    read_streams,
    store_attributes,
    wait_until_copied,
)
from tests.node.watch import run
from tests.node.wire_client import connected
from tests.waiting import wait_until

ALL = range(VBUCKETS)


@pytest.fixture
def active():
    with run_upstream() as node:
        yield node


@pytest.fixture
def copy():
    """A node whose vbuckets are replicas."""
    with Node.running(["beer"], VBUCKETS) as node:
        set_states(node, VbucketState.REPLICA)
        yield node


def set_states(node, state, vbuckets=ALL):
    with connected(node, "beer") as client:
        for vbucket in vbuckets:
            assert client.status(SetVbucket(vbucket=vbucket, state=state)) == Status.SUCCESS


def write(node, first, behind):
    with connected(node, "beer") as client:
        client.hello(Feature.COLLECTIONS)
        for number in range(first, behind):
            vbucket = number % VBUCKETS
            client.set(make_key(0, b"%d" % (number % 50)), b"%d" % number * 20, vbucket=vbucket, flags=number)
            if number % 7 == 0:
                client.delete(make_key(0, b"%d" % (number % 50)), vbucket=vbucket)


def test_copy_has_the_documents_and_collections_of_the_active_vbuckets(active, copy):
    with connected(active, "beer") as writer:
        writer.hello(Feature.COLLECTIONS)
        set_scopes(writer, 1, DEFAULT, make_beers(ALE, LAGER))
        for vbucket in ALL:
            for collection in (0, ALES, LAGERS, ALES):
                writer.set(make_key(collection, b"%d" % vbucket), b"v", vbucket=vbucket, flags=3)
            writer.delete(make_key(0, b"%d" % vbucket), vbucket=vbucket)
        store_attributes(active)
        with replicating(active, copy, "beer", ALL) as statuses:
            wait_until_copied(copy, active)
            asyncio.run(wait_until(lambda: len(statuses) == VBUCKETS))  # the proxy may read the last reply later
            assert statuses == dict.fromkeys(ALL, Status.SUCCESS)
            assert read_streams(copy) == read_streams(active)
            set_scopes(writer, 2, DEFAULT, make_beers(ALE))
            writer.set(make_key(ALES), b"new", vbucket=2)
            wait_until_copied(copy, active)
            assert read_streams(copy) == read_streams(active)
            assert run(copy, lambda: get_manifest(copy)).uid == 2


def test_replication_continues_after_each_connection(active, copy):
    for start in range(0, 600, 200):
        write(active, start, start + 200)
        with replicating(active, copy, "beer", ALL):
            write(active, start + 200, start + 250)
            wait_until_copied(copy, active)
    assert read_streams(copy) == read_streams(active)


def test_former_active_node_rolls_back_to_the_common_history(active, copy):
    write(active, 0, 100)
    with replicating(active, copy, "beer", ALL):
        wait_until_copied(copy, active)
    write(active, 100, 140)  # these changes are lost
    set_states(copy, VbucketState.ACTIVE)
    write(copy, 140, 200)
    set_states(active, VbucketState.REPLICA)
    with replicating(copy, active, "beer", ALL):
        wait_until_copied(active, copy)
    assert read_streams(active) == read_streams(copy)
    assert all(len(log) >= 2 for log, _, _ in get_history(copy))
