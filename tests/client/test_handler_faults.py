"""Handlers of a consumer while its process is killed, and while its connections have faults."""

import asyncio
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import penstock
from penstock import Consumer, FilePositions, HandlerRetry
from penstock.node import Node
from penstock.pytest import PenstockCluster, ProxySide
from tests.patience import PATIENCE
from tests.waiting import pass_turns, wait_until

PROGRAM = """
import asyncio, os, sys
import penstock

url, positions, log, stop = sys.argv[1:]
log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

async def handler(change):
    for _ in range(change.seqno % 5):
        await asyncio.sleep(0)
    if (change.seqno + len(change.key)) % 7 == 0 and change.key not in failed:
        failed.add(change.key)
        raise ValueError("only once")
    os.write(log, f"{os.getpid()} {change.vbucket} {change.seqno} {change.key.decode()}\\n".encode())

async def main():
    async with penstock.connect(url) as bucket:
        commit = penstock.CommitPolicy(changes=7)
        store = penstock.FilePositions(positions)
        async with penstock.Consumer(bucket, store, stop=stop or None, commit=commit) as consumer:
            await consumer.handle(handler, concurrency=6, retry=penstock.HandlerRetry(first_seconds=0))

failed = set()
asyncio.run(main())
"""


class HandlingProcess:
    """Processes that handle the changes of a bucket, one after the other, with the same positions.

    Attributes:
        committed: before each process, by vbucket: the seqno of the saved positions.
    """

    def __init__(self, url: str, directory: Path) -> None:
        self.committed: list[dict[int, int]] = []
        self._url = url
        self._positions = directory / "positions.json"
        self._log = directory / "handled"
        self._log.touch()

    def read_lines(self) -> list[tuple[int, int, int, str]]:
        """Return the changes that handlers have finished: process, vbucket, seqno and key."""
        lines = [line.split() for line in self._log.read_text().splitlines()]
        return [(int(process), int(vbucket), int(seqno), key) for process, vbucket, seqno, key in lines]

    def has_lines(self, count: int) -> bool:
        return len(self.read_lines()) >= count

    async def start(self, stop: str = "") -> subprocess.Popen[bytes]:
        saved = await FilePositions(self._positions).read()
        self.committed.append({} if saved is None else {vb: each.seqno for vb, each in saved.by_vbucket.items()})
        arguments = [self._url, str(self._positions), str(self._log), stop]
        return subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments])  # noqa: ASYNC220 - the loop may wait


@pytest.mark.process
@pytest.mark.long
def test_killed_process_repeats_only_changes_after_its_last_commit(tmp_path):
    async def main(url):
        processes = HandlingProcess(url, tmp_path)
        async with penstock.connect(url) as bucket:
            for turn in range(4):
                process = await processes.start()
                enough = len(processes.read_lines()) + 30
                documents = [(f"k{turn}-{number}", b"1") for number in range(60)]
                await bucket.upsert_many([*documents, *((f"hot{number % 4}", b"1") for number in range(20))])
                await wait_until(partial(processes.has_lines, enough))
                process.kill()
                process.wait(PATIENCE)
            last = await processes.start("now")
            assert await asyncio.to_thread(last.wait, PATIENCE) == 0
            newest = {(change.vbucket, change.seqno) async for change in bucket.changes(stop="now")}
        return processes, newest

    with Node.running(["beer"], vbuckets=4) as node:
        processes, newest = asyncio.run(main(node.url("beer")))
    lines = processes.read_lines()
    assert newest <= {(vbucket, seqno) for _, vbucket, seqno, _ in lines}
    numbers = [*dict.fromkeys(process for process, *_ in lines)]
    assert len(numbers) == len(processes.committed)
    for number, committed in zip(numbers, processes.committed, strict=True):
        assert all(seqno > committed.get(vb, 0) for process, vb, seqno, _ in lines if process == number)
        earlier = {(vb, seqno) for process, vb, seqno, _ in lines if numbers.index(process) < numbers.index(number)}
        assert {(vb, seqno) for vb, seqno in newest if seqno <= committed.get(vb, 0)} <= earlier
        by_key = defaultdict(list)
        for process, _, seqno, key in lines:
            if process == number:
                by_key[key].append(seqno)
        assert all(seqnos == sorted(set(seqnos)) for seqnos in by_key.values())


@pytest.mark.long
def test_faults_of_connections_repeat_no_change_and_lose_none(tmp_path):
    handled: defaultdict[tuple[int, bytes], list[int]] = defaultdict(list)
    attempts: defaultdict[tuple[int, int], int] = defaultdict(int)

    async def handler(change):
        attempts[change.vbucket, change.seqno] += 1
        await pass_turns(change.seqno % 4)
        if change.seqno % 5 == 0 and attempts[change.vbucket, change.seqno] < 3:
            raise ValueError("twice")
        handled[change.vbucket, change.key].append(change.seqno)

    async def main(cluster):
        url = f"{cluster.bucket.url}?retrySeconds={PATIENCE:g}"
        async with penstock.connect(url) as bucket, penstock.connect(url) as writer:
            async with Consumer(bucket, FilePositions(tmp_path / "positions.json")) as consumer:
                retry = HandlerRetry(first_seconds=0)
                handling = asyncio.create_task(consumer.handle(handler, concurrency=5, retry=retry))
                for turn, fault in enumerate(FAULTS * 2):
                    await writer.upsert_many([(f"k{number}", b"%d" % turn) for number in range(40)])
                    await asyncio.to_thread(fault, cluster.nodes[turn % 2].proxy)
                    await asyncio.to_thread(cluster.heal)
                highs = await writer.high_seqnos()
                await wait_until(lambda: {vb: consumer.positions[vb].seqno for vb in highs} == highs, handling)
                handling.cancel()
                with suppress(asyncio.CancelledError):
                    await handling
            return [change async for change in bucket.changes(stop="now")]

    with PenstockCluster.running(2, tmp_path, 4) as cluster:
        cluster.create_bucket("beer").move(range(2), 1)
        newest = asyncio.run(main(cluster))
    assert {(change.vbucket, change.key): change.seqno for change in newest} == {
        document: seqnos[-1] for document, seqnos in handled.items()
    }
    assert all(seqnos == sorted(set(seqnos)) for seqnos in handled.values())
    assert {attempts[change.vbucket, change.seqno] for change in newest} == {1, 3}


FAULTS = [
    lambda proxy: proxy.cut(),
    lambda proxy: proxy.half_close(ProxySide.CLIENT),
    lambda proxy: proxy.single_bytes(2000),
    lambda proxy: proxy.half_close(ProxySide.SERVER),
    lambda proxy: proxy.refuse(),
    lambda proxy: proxy.black_hole(),
]
