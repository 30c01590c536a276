"""A consumer and its tests, with the fixtures of penstock.pytest: run them with `pytest examples/testing`."""

import asyncio
from collections import Counter
from collections.abc import Callable

import penstock
from penstock.pytest import PenstockBucket, PenstockCluster, PenstockNode


class LetterCounts:
    """Counts the documents of a bucket by the first letter of their keys, also over rollbacks.

    Attributes:
        positions: where the next call of `follow` continues.
        seen: by vbucket, the seqno and the key of each change that is valid, and whether the document exists.
    """

    def __init__(self) -> None:
        self.positions: dict[int, penstock.Position] = {}
        self.seen: dict[int, list[tuple[int, bytes, bool]]] = {}

    def apply(self, change: penstock.Change) -> None:
        """Apply a change. A rollback makes the later changes of its vbucket void."""
        seen, seqno = self.seen.setdefault(change.vbucket, []), change.seqno or 0
        if change.event == "rollback":
            seen[:] = [each for each in seen if each[0] <= seqno]
        else:
            seen.append((seqno, change.key or b"", change.event == "mutation"))

    def count(self) -> Counter[str]:
        """Return the number of documents by the first letter of their keys."""
        exists = {key: is_there for seen in self.seen.values() for _, key, is_there in seen}
        return Counter(key[:1].decode() for key, is_there in exists.items() if is_there)

    async def follow(self, url: str) -> None:
        """Apply all changes up to now."""
        async with penstock.connect(url) as bucket, await bucket.stream(self.positions, "now") as stream:
            async for change in stream.changes():
                self.apply(change)
            self.positions = stream.positions


def follow(counts: LetterCounts, url: str) -> None:
    asyncio.run(asyncio.wait_for(counts.follow(url), 60))


def store(url: str, *keys: str) -> None:
    async def run() -> None:
        async with penstock.connect(url) as bucket:
            await bucket.upsert_many((key, b"{}") for key in keys)

    asyncio.run(run())


def test_counts_documents(penstock_bucket: PenstockBucket) -> None:
    store(penstock_bucket.url, "ale", "amber", "stout")
    counts = LetterCounts()
    follow(counts, penstock_bucket.url)
    assert counts.count() == {"a": 2, "s": 1}


def test_counts_nothing_twice_on_a_bad_network(penstock_bucket: PenstockBucket, penstock_node: PenstockNode) -> None:
    counts = LetterCounts()
    for key in ("ale", "amber", "stout"):
        store(penstock_bucket.url, key)
        penstock_node.proxy.single_bytes(2000)
        follow(counts, penstock_bucket.url)
    assert counts.count() == {"a": 2, "s": 1}


def test_failover_takes_lost_documents_back(penstock_cluster: Callable[..., PenstockCluster]) -> None:
    bucket = penstock_cluster(2, vbuckets=2).bucket
    bucket.move([0, 1], to=0)
    store(bucket.url, "ale", "amber")
    bucket.replicate()
    store(bucket.url, "stout")  # no replica has this document
    counts = LetterCounts()
    follow(counts, bucket.url)
    assert counts.count() == {"a": 2, "s": 1}
    bucket.fail_over(0)
    follow(counts, bucket.url)
    assert counts.count() == {"a": 2}
