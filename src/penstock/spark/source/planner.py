"""The planning process's view of the bucket."""

from __future__ import annotations

import asyncio
import time

from penstock.client.address import Address
from penstock.client.blocking import LoopThread
from penstock.client.bucket import Bucket
from penstock.client.position import VbucketInfo

_LOOK_SECONDS, _WATCH_SECONDS = 0.25, 0.02
"""How often an idle query looks at the histories of all vbuckets, and at their high seqnos, at most."""


class Planner:
    """What a bucket says of itself, over a connection made when it is first needed."""

    def __init__(self, address: Address) -> None:
        self._loop = LoopThread("penstock-planner").__enter__()
        self._bucket = Bucket(address)
        self._infos: dict[int, VbucketInfo] = {}
        self._looked_at = 0.0

    def infos(self) -> dict[int, VbucketInfo]:
        self._infos = self._loop.run(self._bucket.vbucket_infos())
        self._looked_at = time.monotonic()
        return self._infos

    def nothing_new(self) -> bool:
        """Tell whether the last `infos` still hold, all but the purge seqnos, at a third of what they cost.

        Without a trigger Spark asks every 10 ms: after less than _LOOK_SECONDS this waits, watching the high seqnos.
        """
        return self._loop.run(self._unchanged())

    async def _unchanged(self) -> bool:
        expected = {vbucket: info.high_seqno for vbucket, info in self._infos.items()}
        while await self._bucket.high_seqnos() == expected:
            left = self._looked_at + _LOOK_SECONDS - time.monotonic()
            if left > 0:
                await asyncio.sleep(min(left, _WATCH_SECONDS))
                continue
            logs = await self._bucket.failover_logs(range(len(expected)))
            self._looked_at = time.monotonic()
            return all(self._infos[vbucket].failover_log == log for vbucket, log in logs.items())
        return False

    def close(self) -> None:
        self._loop.run(self._bucket.close())
        self._loop.__exit__(None, None, None)
