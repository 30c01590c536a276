"""A bucket that is killed and goes on, again and again, and what it ought to be each time."""

from __future__ import annotations

import random
from pathlib import Path

from penstock.store.disk.durable_log import DurableLog
from penstock.wire.codec.constants import VbucketState
from tests.kills.expected import Expected
from tests.kills.killing import Death, Nursery
from tests.kills.reader import check, find_end
from tests.kills.workload import PLANS, began, is_copy
from tests.kills.writer import READER, Clock, Doom, Life, open_bucket, vbuuids

__all__ = ["Victim"]


class Victim:
    """lives: how many it has had. turns: how many of them all were on disk at the end of theirs.

    seed: of all that is done to it, but not of the moments at which it is killed.
    """

    def __init__(self, path: Path, plan: str, seed: int) -> None:
        self.path = path
        self.plan = plan
        self.seed = seed
        self.lives = self.turns = 0
        self._chance = random.Random(seed)
        self._clock = Clock(began(0))
        self._expected = Expected(PLANS[plan].vbuckets)
        self._make()

    def _make(self) -> None:
        bucket = open_bucket(self.life(), self._clock, READER)
        chance = vbuuids(0, READER)
        for _ in range(2):  # which its own uuid is made of
            next(chance)
        for vbucket, expected in zip(bucket.vbuckets, self._expected.vbuckets, strict=True):
            expected.log = ((next(chance), 0),)
            if is_copy(vbucket.id):
                vbucket.set_state(VbucketState.REPLICA)
                expected.state = VbucketState.REPLICA
        bucket.close()

    def life(self, doom: Doom | None = None) -> Life:
        return Life(str(self.path), self.plan, self.seed, self.lives, doom)

    def live(self, nursery: Nursery, seconds: float, doom: Doom | None = None) -> Death:
        """Have another life, and see what is left of it. Raises Mismatch."""
        self.lives += 1
        death = nursery.live(self.life(doom), seconds)
        life = self.life()
        bucket = open_bucket(life, self._clock, READER)
        try:
            self.turns += find_end(bucket, life, self._expected, death.on_disk) or 0
            for vbucket, expected in zip(bucket.vbuckets, self._expected.vbuckets, strict=True):
                expected.log = vbucket.history.failover_log  # whose newest entry the reader has just made
            self._clock.now = max(self._clock.now, self._expected.now)
            check(bucket, life, self._expected)
            if self._chance.random() < 0.2:
                bucket.compactor.rewrite_all()
                check(bucket, life, self._expected)
        finally:
            self._expected.clean = self._chance.random() < 0.5
            if self._expected.clean:
                bucket.close()
            else:  # as if the reader had been killed as well
                assert isinstance(bucket.log, DurableLog)
                bucket.log.directory.unlock()
        return death
