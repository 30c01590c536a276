"""Keep a cache in front of a bucket fresh: ask it to drop each document that changes.

The cache gets `DELETE /KEY` for a document, and `DELETE /` for everything. Positions are saved after the cache has
answered. So a request may come twice after a crash, which does no harm.
"""

import argparse
import asyncio
from typing import Literal
from urllib.parse import quote
from urllib.request import Request, urlopen

import pyarrow as pa

import penstock

TIMEOUT = 10.0


def drop(cache: str, keys: set[bytes] | None) -> None:
    """Ask the cache to drop these keys, or everything if there are none."""
    paths = [""] if keys is None else [quote(key, safe="") for key in sorted(keys)]
    for path in paths:
        with urlopen(Request(f"{cache}/{path}", method="DELETE"), timeout=TIMEOUT):
            pass


def find_keys(batch: pa.RecordBatch) -> set[bytes] | None:
    """Return the keys to drop, None for everything.

    A rollback makes changes void whose keys the program no longer knows. It has no key, as a flush and a dropped
    collection.
    """
    keys = batch["key"]
    return None if keys.null_count else set(keys.to_pylist())


async def follow(url: str, cache: str, positions: str, stop: Literal["now"] | None = None) -> None:
    """Follow a bucket, without values: a cache reads them itself when it needs them."""
    store = penstock.FilePositions(positions)
    async with (
        penstock.connect(url) as bucket,
        penstock.Consumer(bucket, store, stop=stop, commit=penstock.BY_HAND, values=False) as consumer,
    ):
        async for batch in consumer.batches():
            await asyncio.to_thread(drop, cache, find_keys(batch))
            await consumer.commit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Drop changed documents from a cache.")
    parser.add_argument("url", help="for example couchbase://127.0.0.1:11210/beer")
    parser.add_argument("cache", help="for example http://127.0.0.1:8080")
    parser.add_argument("--positions", default="cache.positions", help="a file; default: %(default)s")
    options = parser.parse_args()
    asyncio.run(follow(options.url, options.cache, options.positions))
