"""The small programs of examples/ against a real node."""

import asyncio
import runpy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import penstock
from penstock.pytest import PenstockCluster

EXAMPLES = Path(__file__).parent.parent / "examples"


async def store_documents(url: str, **documents: bytes) -> None:
    async with penstock.connect(url) as bucket:
        await bucket.upsert_many(documents.items())


async def remove_document(url: str, key: str) -> None:
    async with penstock.connect(url) as bucket:
        await bucket.remove(key)


def test_tap_starts_again_and_dcp_continues_and_rolls_back(
    penstock_cluster: Callable[..., PenstockCluster], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    follow = runpy.run_path(str(EXAMPLES / "tap_migration" / "follow.py"))["follow"]
    positions = str(tmp_path / "beer.positions")

    def lines(url: str, positions: str | None = None) -> list[str]:
        asyncio.run(follow(url, positions))
        return [line for line in capsys.readouterr().out.splitlines() if "mutation" in line or positions]

    bucket = penstock_cluster(1, vbuckets=1).bucket
    asyncio.run(store_documents(bucket.url, ale=b"{}"))
    assert lines(bucket.url) == lines(bucket.url) == ["mutation vbucket=0 seqno=None ale"]
    assert lines(bucket.url, positions) == ["mutation vbucket=0 seqno=1 ale"]
    asyncio.run(store_documents(bucket.url, stout=b"{}"))
    assert lines(bucket.url, positions) == ["mutation vbucket=0 seqno=2 stout"]
    bucket.rollback(0, 1)
    assert lines(bucket.url, positions) == ["rollback vbucket=0 seqno=1 "]


@contextmanager
def run_cache() -> Iterator[tuple[str, list[str]]]:
    """Run a cache; yield its URL, and the paths that it was asked to drop."""
    dropped: list[str] = []

    class Cache(BaseHTTPRequestHandler):
        def do_DELETE(self) -> None:
            dropped.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Cache) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", dropped
        server.shutdown()
        thread.join()


def test_cache_drops_changed_keys_and_after_a_rollback_everything(
    penstock_cluster: Callable[..., PenstockCluster], tmp_path: Path
) -> None:
    follow = runpy.run_path(str(EXAMPLES / "cache_invalidator" / "invalidate.py"))["follow"]
    positions = str(tmp_path / "cache.positions")
    bucket = penstock_cluster(1, vbuckets=1).bucket

    def run() -> list[str]:
        with run_cache() as (cache, dropped):
            asyncio.run(follow(bucket.url, cache, positions, stop="now"))
        return dropped

    asyncio.run(store_documents(bucket.url, ale=b"{}", **{"a/b": b"{}"}))
    assert run() == ["/a%2Fb", "/ale"]
    asyncio.run(remove_document(bucket.url, "ale"))
    assert run() == ["/ale"]
    bucket.rollback(0, 2)
    assert run() == ["/"]
    assert run() == []


def test_search_index_follows_changes_deletions_and_rollbacks(
    penstock_cluster: Callable[..., PenstockCluster], tmp_path: Path
) -> None:
    example = runpy.run_path(str(EXAMPLES / "search_index" / "index.py"))
    path = str(tmp_path / "beers.sqlite")
    bucket = penstock_cluster(1, vbuckets=1).bucket

    def find(query: str) -> list[str]:
        asyncio.run(example["follow"](bucket.url, path, stop="now"))
        found: list[str] = example["search"](path, query)
        return sorted(found)

    asyncio.run(store_documents(bucket.url, ale=b'{"name": "Amber Ale"}', stout=b'{"name": "Oat Stout"}'))
    assert (find("amber"), find("ale OR stout")) == (["ale"], ["ale", "stout"])
    asyncio.run(store_documents(bucket.url, ale=b'{"name": "Pale Ale"}'))
    assert (find("amber"), find("pale")) == ([], ["ale"])
    asyncio.run(remove_document(bucket.url, "stout"))
    assert find("stout") == []
    bucket.rollback(0, 2)  # before the second version of the ale, and the removal
    assert (find("amber"), find("pale"), find("oat")) == (["ale"], [], ["stout"])
