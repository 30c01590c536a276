"""Samples of a bucket are spread over vbuckets, and bounded in documents and bytes."""

import asyncio
import json
from collections import Counter

import pytest

import penstock
from penstock import Node
from penstock.client.documents.document import compute_vbucket
from penstock.client.dumps.document_samples import CollectionSample, DocumentSamples, SampleLimits, sample_bucket
from tests.node.watch import run

VBUCKETS = 32
DOCUMENTS = 640


def make_key(number: int) -> str:
    return f"k{number}"


@pytest.fixture(scope="module")
def url():
    """A bucket with some documents in each vbucket, and a deletion."""

    async def write(url: str) -> None:
        async with penstock.connect(url) as bucket:
            for number in range(DOCUMENTS):
                await bucket.upsert(make_key(number), json.dumps({"n": number}).encode())
            await bucket.upsert("gone", b"1")
            await bucket.remove("gone")

    with Node.running(["beer"], vbuckets=VBUCKETS) as node:
        asyncio.run(write(node.url("beer")))
        yield node.url("beer")


@pytest.fixture
def node():
    with Node.running(["beer"], vbuckets=VBUCKETS) as node:
        yield node


def read_sample(url: str, limits: SampleLimits) -> CollectionSample:
    async def read() -> CollectionSample:
        async with penstock.connect(url) as bucket:
            (found,) = (await sample_bucket(bucket, limits, lambda count: None)).collections
            return found

    return asyncio.run(read())


def list_numbers(sample: CollectionSample) -> list[int]:
    return [json.loads(value or b"")["n"] for value in sample.values]


def test_a_small_collection_is_read_whole(url):
    found = read_sample(url, SampleLimits())
    assert sorted(list_numbers(found)) == [*range(DOCUMENTS)]
    assert (found.name, found.total) == ("_default", DOCUMENTS)


@pytest.mark.parametrize("most", [1, 3, 40, DOCUMENTS - 1])
def test_a_sample_has_the_given_number_of_documents(url, most):
    found = list_numbers(read_sample(url, SampleLimits(documents=most)))
    assert len(found) == len({*found}) == most


def test_a_sample_is_spread_over_vbuckets(url):
    found = list_numbers(read_sample(url, SampleLimits(documents=40)))
    places = Counter(compute_vbucket(make_key(number).encode(), VBUCKETS) for number in found)
    assert places == dict.fromkeys(range(0, VBUCKETS, 4), 5)


def test_a_sample_is_bounded_in_bytes(url):
    values = read_sample(url, SampleLimits(nbytes=100)).values
    sizes = [len(value or b"") for value in values]
    assert 100 <= sum(sizes) < 100 + max(sizes)


def test_large_and_small_collections_are_read_together(node):
    """A large collection is full early, and the others go on; a collection without documents is no reason to read."""
    counts = {"large": 500, "small": 9, "other": 60, "empty": 0}
    bucket = node.buckets["beer"]

    def change() -> None:
        manifest = bucket.store.manifests.current
        for name in counts:
            manifest = manifest.with_collection("_default", name)
        bucket.change_manifest(manifest)

    run(node, change)

    async def read() -> DocumentSamples:
        async with penstock.connect(node.url("beer")) as bucket:
            for name, count in counts.items():
                for number in range(count):
                    await bucket.upsert(make_key(number), json.dumps({"n": number}).encode(), collection=name)
            return await sample_bucket(bucket, SampleLimits(documents=50), lambda count: None)

    found = {each.name: list_numbers(each) for each in asyncio.run(read()).collections}
    assert {name: len(numbers) for name, numbers in found.items()} == {
        "_default": 0, "large": 50, "small": 9, "other": 50, "empty": 0,
    }  # fmt: skip
    assert sorted(found["small"]) == [*range(9)]
    assert all(len({*numbers}) == len(numbers) for numbers in found.values())
