"""Counts the mutations of a bucket with Penstock. A program of the benchmark `consumers`.

Arguments: address of the key-value port, address of the HTTP port (unused), user, password, bucket, number of mutations
to wait for, and `beginning` or `now`. From the beginning it reads record batches. With `now` it reads one change at a
time, and prints the key and the arrival of each mutation.
"""

from __future__ import annotations

import asyncio
import sys
import time

import penstock
from penstock.client.streams.change_stream import ChangeStream

WINDOW = 20 * 1024 * 1024


async def count(url: str, login: dict[str, str], wanted: int, start: str) -> None:
    """Count mutations, and print a line before the streams, after their request, and at the end."""
    # Two lists of plain objects: the garbage collector counts pairs, and would run for the measurement's sake.
    keys: list[bytes] = []
    times: list[int] = []
    async with penstock.connect(url, **login) as connected:
        print("starting", flush=True)
        async with await connected.stream("now" if start == "now" else "beginning") as stream:
            print("ready", flush=True)
            if start == "now":
                async for change in stream.changes():
                    keys.append(change.key or b"")
                    times.append(time.time_ns())
                    if len(times) == wanted:
                        break
                size = 0
            else:
                size = await count_batches(stream, wanted)
        print("done", size, flush=True)
        sys.stdin.readline()
    for key, at in zip(keys, times, strict=True):
        print(key.decode(), at)


async def count_batches(stream: ChangeStream, wanted: int) -> int:
    """Read record batches with all columns, and return the bytes of the values."""
    found = size = 0
    async for batch in stream:
        found += batch.num_rows
        size += batch["value"].nbytes
        if found >= wanted:
            break
    return size


if __name__ == "__main__":
    place, _, user, password, bucket, number, begin = sys.argv[1:]
    login = {"username": user, "password": password}
    asyncio.run(count(f"couchbase://{place}/{bucket}?flowControlBytes={WINDOW}", login, int(number), begin))
