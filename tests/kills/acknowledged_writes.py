"""The acknowledged writes of a cluster: which of them it may lose, and which it has lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import penstock
from penstock.client.documents.document import compute_vbucket
from penstock.client.documents.durability_levels import DurabilityName
from penstock.errors import Error

LEVELS: tuple[DurabilityName | None, ...] = (None, "majority", "persistToMajority")
COMMIT_SECONDS = 5.0
"""A write is on disk within some milliseconds, but not on a busy machine. A later kill loses no write."""
_PAUSE_SECONDS = 0.03


class AcknowledgedWrite(NamedTuple):
    """An acknowledged write. No other write has its key.

    Attributes:
        key: the key.
        vbucket: its vbucket.
        level: the durability level; None: the write is ordinary.
        began: the time of the request.
        acknowledged: the time of the answer.
    """

    key: str
    vbucket: int
    level: DurabilityName | None
    began: float
    acknowledged: float


@dataclass
class AcknowledgedWrites:
    """The acknowledged writes of a cluster, and the events that may lose some of them.

    Attributes:
        entries: the acknowledged writes.
        kills: the times at which processes of nodes were killed.
        failed_over: the vbuckets of which a replica was promoted.
    """

    entries: list[AcknowledgedWrite] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    failed_over: set[int] = field(default_factory=set)

    async def write(self, url: str, vbuckets: int, name: str, random: Random) -> None:
        """Write documents until the task is cancelled."""
        number = 0
        async with penstock.connect(url) as bucket:
            while True:
                number += 1
                key, level, began = f"{name}-{number}", random.choice(LEVELS), time.monotonic()
                try:
                    await bucket.upsert(key, key.encode(), durability=level)
                except (OSError, Error):
                    pass
                else:
                    place = compute_vbucket(key.encode(), vbuckets)
                    self.entries.append(AcknowledgedWrite(key, place, level, began, time.monotonic()))
                await asyncio.sleep(random.uniform(0, _PAUSE_SECONDS))

    def find_lost(self, found: Collection[str]) -> list[AcknowledgedWrite]:
        """Return the writes that the cluster has lost, and may not lose.

        Args:
            found: the keys of all documents.
        """
        return [entry for entry in self.entries if entry.key not in found and not self._may_lose(entry)]

    def _may_lose(self, entry: AcknowledgedWrite) -> bool:
        """Return whether a write may be lost: no disk had it before a kill, or no replica before a failover."""
        if entry.level == "persistToMajority":
            return False
        was_killed = any(entry.began <= at <= entry.acknowledged + COMMIT_SECONDS for at in self.kills)
        return was_killed or (entry.level is None and entry.vbucket in self.failed_over)

    def count_levels(self) -> Mapping[str, int]:
        """Return the number of acknowledged writes of each level."""
        levels = [entry.level for entry in self.entries]
        return {level or "ordinary": levels.count(level) for level in LEVELS}
