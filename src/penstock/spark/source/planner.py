"""The planning process's view of the bucket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence

from penstock.client.blocking import LoopThread
from penstock.client.bucket import Bucket
from penstock.client.connect.address import Address
from penstock.client.connect.client_session import open_session
from penstock.client.connect.cluster_map import ClusterMap
from penstock.client.connect.handshake import DOCUMENTS
from penstock.client.connect.retry import retrying
from penstock.client.feeds.selection import KnownCollections, read_manifest
from penstock.client.streams.dialect_check import check_dialect
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.errors import UsageError
from penstock.wire.codec.constants import Dialect
from penstock.wire.messages.collections import GetManifest

__all__ = ["ASSUMED_BYTES", "Planner", "bytes_per_seqno"]

_LOOK_SECONDS, _WATCH_SECONDS = 0.2, 0.02
"""How often an idle query looks at the histories of all vbuckets, and at their high seqnos, at most."""

_WEIGH_SECONDS = 10.0
"""How long an estimate of the changes' size is good for."""

ASSUMED_BYTES = 1024
"""Of a change, where a node says nothing that it could be known from."""

_WEIGHED = (
    ("ep_log_live_bytes", "curr_items_tot"),
    ("vb_active_itm_memory_uncompressed", "vb_active_curr_items"),
    ("vb_active_itm_memory", "vb_active_curr_items"),
    ("bytes", "curr_items"),
)
"""Statistics of bytes and of the documents that have them: Penstock's node, then kv_engine from new to old."""


def bytes_per_seqno(stats: Mapping[str, int]) -> int:
    """Return how many bytes a change of the bucket has on average, as far as its statistics tell; at least 1."""
    for of_bytes, of_items in _WEIGHED:
        nbytes, items = stats.get(of_bytes, 0), stats.get(of_items, 0)
        if nbytes and items:
            return -(-nbytes // items)
    return ASSUMED_BYTES


class Planner:
    """What a bucket says of itself, over connections made when they are first needed.

    vbuckets: those that are asked for, None for all. Every method raises as those of Bucket do, and UsageError for a
    vbucket that there is not.
    """

    def __init__(self, address: Address, vbuckets: Sequence[int] | None = None) -> None:
        self._loop = LoopThread("penstock-planner").__enter__()
        self._bucket = Bucket(address)
        self._vbuckets = vbuckets
        self._looked_at = 0.0
        self._looked_for: frozenset[int] = frozenset()
        self._bytes, self._weighed_at = ASSUMED_BYTES, -_WEIGH_SECONDS
        self.seen: dict[int, VbucketInfo] = {}
        """What `infos` returned last."""

    @property
    def cluster(self) -> ClusterMap:
        return self._loop.run(self._bucket.cluster())

    @property
    def vbuckets(self) -> Sequence[int]:
        """Those that are asked for."""
        count = self.cluster.vbuckets
        if self._vbuckets is not None and self._vbuckets[-1] >= count:
            raise UsageError(f"option vbuckets has {self._vbuckets[-1]}, expected numbers below the bucket's {count}")
        return range(count) if self._vbuckets is None else self._vbuckets

    def collections(self) -> KnownCollections | None:
        """Return what collections the bucket has now, None of a node that knows none."""
        return self._loop.run(retrying(self._collections, self._bucket.address, self._bucket.has_served))

    async def _collections(self) -> KnownCollections | None:
        session = await open_session(self._bucket.address, DOCUMENTS)
        try:
            if not session.collections:
                return None
            timeout = self._bucket.address.options.operation_timeout
            return read_manifest((await session.link.request(GetManifest(), timeout)).value)
        finally:
            await session.link.close()

    def check_dialect(self, dialect: Dialect) -> None:
        """Raise UnsupportedServer if the server does not stream changes in this dialect."""
        self._loop.run(check_dialect(self._bucket.address, dialect))

    def infos(
        self, vbuckets: Sequence[int] | None = None, settled: Collection[int] | None = None
    ) -> dict[int, VbucketInfo]:
        """Return a consistent view of these vbuckets; of all that are asked for, if not given.

        Those that no node serves are waited for, or left out, as the option missingVbuckets says.

        settled: those whose purge seqno does not matter as long as nothing else has changed since the last call; None:
        everything is asked for anew.
        """
        wanted = self.vbuckets if vbuckets is None else vbuckets
        self._looked_for = frozenset(wanted)
        known, unsure = ({}, set()) if settled is None else (self.seen, {*wanted} - {*settled})
        self.seen = self._loop.run(self._bucket.vbucket_infos(wanted, known, unsure))
        self._looked_at = time.monotonic()
        return self.seen

    def nothing_new(self) -> bool:
        """Tell whether the last `infos` still hold, all but the purge seqnos, at a third of what they cost.

        Without a trigger Spark asks every 10 ms: after less than _LOOK_SECONDS this waits, watching the high seqnos.
        """
        return self._loop.run(self._unchanged())

    async def _unchanged(self) -> bool:
        expected = {vbucket: info.high_seqno for vbucket, info in self.seen.items()}
        while await self._high_seqnos() == expected:
            left = self._looked_at + _LOOK_SECONDS - time.monotonic()
            if left > 0:
                await asyncio.sleep(min(left, _WATCH_SECONDS))
                continue
            logs = await self._bucket.failover_logs([*expected])
            self._looked_at = time.monotonic()
            return all(self.seen[vbucket].failover_log == log for vbucket, log in logs.items())
        return False

    async def _high_seqnos(self) -> dict[int, int]:
        found = await self._bucket.high_seqnos()
        return {vb: seqno for vb, seqno in found.items() if vb in self._looked_for}

    def bytes_per_seqno(self) -> int:
        """Return an estimate for all changes, of the last _WEIGH_SECONDS."""
        if time.monotonic() - self._weighed_at >= _WEIGH_SECONDS:
            self._bytes = bytes_per_seqno(self._loop.run(self._bucket.total_stats()))
            self._weighed_at = time.monotonic()
        return self._bytes

    def close(self) -> None:
        self._loop.run(self._bucket.close())
        self._loop.__exit__(None, None, None)
