"""Couchbase's Python SDK reads documents that XDCR copied from a bucket that the SDK has written."""

import asyncio
from datetime import timedelta

import pytest

from tests.compat.installed import require_package
from tests.compat.serving import Serving

require_package("couchbase")

from couchbase import subdocument
from couchbase.exceptions import DocumentNotFoundException
from couchbase.options import GetOptions, UpsertOptions
from couchbase.transcoder import RawBinaryTranscoder

from penstock import BucketReplication, XdcrOptions
from penstock.client.connect.address import parse_address
from penstock.client.login.credentials import Credentials

WITH_EXPIRY = GetOptions(with_expiry=True)
BINARY = RawBinaryTranscoder()


@pytest.fixture(scope="module")
def target():
    """A node with another number of vbuckets than the source."""
    with Serving.running("--vbuckets", 16) as serving:
        yield serving


def replicate(*nodes):
    credentials = Credentials(Serving.user, Serving.password)
    source, target = (parse_address(f"{node.url}/default", credentials) for node in nodes)
    return asyncio.run(BucketReplication(source, target, XdcrOptions(until="now")).run())


def test_copies_equal_the_originals_for_the_sdk(collection, connect_cluster, node, target):
    collection.upsert("json", {"n": 1, "text": "é"})
    collection.upsert("long", {"text": "y" * 100_000})  # the SDK compresses it
    collection.upsert("binary", b"\x00\xff", UpsertOptions(transcoder=BINARY))
    collection.upsert("expires", {"n": 2}, UpsertOptions(expiry=timedelta(hours=1)))
    collection.upsert("attributes", {"n": 3})
    collection.mutate_in("attributes", [subdocument.upsert("mine.a", [1, 2], xattr=True, create_parents=True)])
    collection.upsert("removed", {"n": 4})
    copies = connect_cluster(target.url).bucket("default").default_collection()
    copies.upsert("removed", {"n": 5})
    collection.remove("removed")
    assert replicate(node, target).refused == 0
    for key in ("json", "long", "expires", "attributes"):
        original, copy = (each.get(key, WITH_EXPIRY) for each in (collection, copies))
        assert (copy.content_as[dict], copy.cas) == (original.content_as[dict], original.cas)
        assert copy.expiry_time == original.expiry_time
    assert copies.get("expires", WITH_EXPIRY).expiry_time is not None
    assert copies.get("binary", GetOptions(transcoder=BINARY)).value == b"\x00\xff"
    found = copies.lookup_in("attributes", [subdocument.get("mine", xattr=True)])
    assert found.content_as[dict](0) == {"a": [1, 2]}
    with pytest.raises(DocumentNotFoundException):
        copies.get("removed")


def test_writes_of_the_sdk_on_both_sides_settle(collection, connect_cluster, node, target):
    copies = connect_cluster(target.url).bucket("default").default_collection()
    for number in range(20):
        collection.upsert(f"both-{number}", {"from": "source"})
        for turn in range(1 + number % 2):
            copies.upsert(f"both-{number}", {"from": "target", "turn": turn})
    replicate(node, target)
    replicate(target, node)
    for number in range(20):
        found = [each.get(f"both-{number}") for each in (collection, copies)]
        assert found[0].cas == found[1].cas
        assert found[0].content_as[dict] == found[1].content_as[dict]
        if number % 2:
            assert found[0].content_as[dict]["from"] == "target"
    assert replicate(node, target).written == replicate(target, node).written == 0
