"""A bucket that is killed and opened again, repeatedly, and its expected content each time."""

from __future__ import annotations

import random
from pathlib import Path

from penstock.store.disk.durable_log import DurableLog
from penstock.wire.codec.constants import VbucketState
from tests.kills.expected import ExpectedBucket
from tests.kills.killing import Death, ForkServer
from tests.kills.reader import check_bucket, find_end
from tests.kills.workload import PLANS, get_life_start, is_copy
from tests.kills.writer import READER, Clock, KillPoint, Life, generate_vbuuids, open_bucket


class KilledBucket:
    """A bucket whose writer is killed repeatedly.

    Attributes:
        path: the directory of the bucket.
        plan: the name of its plan in PLANS.
        seed: the seed of the workload; it does not determine the moments of the kills.
        lives: how many lives the bucket has had.
        turns: how many turns were on disk at the ends of all lives.
    """

    def __init__(self, path: Path, plan: str, seed: int) -> None:
        self.path = path
        self.plan = plan
        self.seed = seed
        self.lives = self.turns = 0
        self._chance = random.Random(seed)
        self._clock = Clock(get_life_start(0))
        self._expected = ExpectedBucket(PLANS[plan].vbuckets)
        self._create_bucket()

    def _create_bucket(self) -> None:
        bucket = open_bucket(self.make_life(), self._clock, READER)
        chance = generate_vbuuids(0, READER)
        for _ in range(2):  # the uuid of the bucket is made of two numbers
            next(chance)
        for vbucket, expected in zip(bucket.vbuckets, self._expected.vbuckets, strict=True):
            expected.log = ((next(chance), 0),)
            if is_copy(vbucket.id):
                vbucket.set_state(VbucketState.REPLICA)
                expected.state = VbucketState.REPLICA
        bucket.close()

    def make_life(self, kill_point: KillPoint | None = None) -> Life:
        return Life(str(self.path), self.plan, self.seed, self.lives, kill_point)

    def run_life(self, fork_server: ForkServer, seconds: float, kill_point: KillPoint | None = None) -> Death:
        """Run another life, and check the bucket after its end.

        Args:
            fork_server: starts the writer.
            seconds: the writer is killed after this time.
            kill_point: the point at which the writer kills itself, None for no such point.

        Raises:
            Mismatch: the content of the bucket is not the expected content.
        """
        self.lives += 1
        death = fork_server.run_writer(self.make_life(kill_point), seconds)
        life = self.make_life()
        bucket = open_bucket(life, self._clock, READER)
        try:
            self.turns += find_end(bucket, life, self._expected, death.on_disk) or 0
            for vbucket, expected in zip(bucket.vbuckets, self._expected.vbuckets, strict=True):
                expected.log = vbucket.history.failover_log  # this opening has added the newest entry
            self._clock.now = max(self._clock.now, self._expected.now)
            check_bucket(bucket, life, self._expected)
            if self._chance.random() < 0.2:
                bucket.compactor.rewrite_all()
                check_bucket(bucket, life, self._expected)
        finally:
            self._expected.clean = self._chance.random() < 0.5
            if self._expected.clean:
                bucket.close()
            else:  # as if the reader had been killed as well
                assert isinstance(bucket.log, DurableLog)
                bucket.log.directory.unlock()
        return death
