"""Print the changes of a bucket up to now, over TAP or over DCP: the same consumer before and after a migration.

Differences of DCP:

- A change has a seqno, and the consumer saves positions. TAP starts from the beginning in each run.
- After a failure of the server a `rollback` reports the seqno above which changes became void. With TAP, a new
  connection starts from the beginning, and reports a `rollback` of each vbucket.
- The stream has flow control: the client acknowledges bytes as the program reads.
- With both, a change may come twice after a crash: with DCP, only those since the last saved position.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator

import penstock


async def read_tap(url: str) -> AsyncIterator[penstock.Change]:
    """Yield all documents; those of earlier runs too."""
    async with penstock.connect(url) as bucket:
        async for change in bucket.changes(start="beginning", stop="now", protocol="tap"):
            yield change


async def read_dcp(url: str, positions: str) -> AsyncIterator[penstock.Change]:
    """Yield the changes since the positions in the file, and save the new positions there."""
    store = penstock.FilePositions(positions)
    async with penstock.connect(url) as bucket, penstock.Consumer(bucket, store, stop="now") as consumer:
        async for change in consumer.changes():
            yield change


async def follow(url: str, positions: str | None) -> None:
    """Print one line for each change. Only this choice of the source differs between the two protocols."""
    async for change in read_dcp(url, positions) if positions else read_tap(url):
        key = (change.key or b"").decode(errors="replace")
        print(change.event, f"vbucket={change.vbucket}", f"seqno={change.seqno}", key, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print the changes of a bucket up to now.")
    parser.add_argument("url", help="for example couchbase://127.0.0.1:11210/beer")
    parser.add_argument("--dcp", metavar="FILE", help="use DCP, and keep the positions in this file; default: use TAP")
    options = parser.parse_args()
    asyncio.run(follow(options.url, options.dcp))
