"""Kill the pipeline's processes at the worst moments, while the bucket changes, and let it go on each time."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from penstock.spark.lake import Lake
from tests.spark.buckets import QUICK_JAVA, Documents, check_changelog, current_of
from tests.spark.running import catch_up

ROOT = Path(__file__).parents[2]
SECONDS = 150.0


class Driver:
    """A pipeline in a process group of its own, which a test kills or which kills itself."""

    def __init__(self, url: str, lake: Lake, point: str) -> None:
        command = [sys.executable, "-m", "tests.spark.driver", url, str(lake.path), point]
        environment = os.environ | {"JDK_JAVA_OPTIONS": QUICK_JAVA}
        self.log = lake.path.parent / "driver.log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        self.has_written = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                if int(line):
                    self.has_written.set()

    def kill(self, *, java: bool) -> None:
        os.killpg(self.process.pid, signal.SIGKILL) if java else self.process.kill()

    def killed(self) -> None:
        """Wait for the end of the driver's Python, and see that it was killed."""
        assert self.process.wait(SECONDS) == -signal.SIGKILL, self.log.read_text()
        self._reader.join(SECONDS)

    def clean_up(self) -> None:
        """Wait until Java has found out that its driver is gone."""
        deadline = time.monotonic() + 30
        while _group_lives(self.process.pid):
            if time.monotonic() > deadline:
                self.kill(java=True)
                raise AssertionError("Java outlived its driver by 30 s")
            threading.Event().wait(0.05)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class Workload:
    """Changes documents of one name until told to stop: each phase its own, so that what it lost stays lost."""

    def __init__(self, documents: Documents, phase: int) -> None:
        self._documents = documents
        self._phase = phase
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _work(self) -> None:
        chance = random.Random(self._phase)
        number = 0
        while not self._stopping.wait(0.02):
            keys = [f"{self._phase}-{chance.randrange(number + 1)}" for _ in range(5)]
            keys += [f"{self._phase}-{number + more}" for more in range(1, 6)]
            number += 5
            self._documents.store({key: f"{number} of {self._phase}".encode() for key in keys})
            self._documents.remove(chance.sample(keys, 2))


def check(lake: Lake, documents: Documents) -> None:
    """The changelog has each change once and the newest of every key; current is the bucket."""
    changes = check_changelog(lake)
    rows = set(zip(*(changes[name].to_pylist() for name in ("vbucket", "seqno", "key", "cas")), strict=True))
    assert documents.newest() <= rows
    assert current_of(lake) == documents.contents()


def state(lake: Lake) -> tuple[int, int, int]:
    """Return the newest batch of the changelog, the newest that Spark has logged as done, and the version folded."""
    changelog, current = lake.changelog_table.open(), lake.current_table.open()
    query = lake.query_id()
    assert changelog is not None
    assert query is not None
    done = max(
        (int(entry.name) for entry in (lake.checkpoint / "commits").iterdir() if entry.name.isdigit()), default=-1
    )
    folded = current.transaction_version(str(changelog.metadata().id)) if current is not None else None
    return changelog.transaction_version(query) or 0, done, -1 if folded is None else folded


def kill_at(documents: Documents, lake: Lake, phase: int, point: str, *, delay: float = 0.0) -> None:
    """Run a driver on a changing bucket until it kills itself at `point`, or for `never` is killed some time later."""
    driver = Driver(documents.url, lake, point)
    try:
        with Workload(documents, phase):
            if point == "never":
                assert driver.has_written.wait(SECONDS), driver.log.read_text()
                with pytest.raises(subprocess.TimeoutExpired):
                    driver.process.wait(delay)
                driver.kill(java=phase % 2 == 0)
            driver.killed()
    finally:
        if driver.process.poll() is None:
            driver.kill(java=True)
    if point != "driver":
        driver.clean_up()


@pytest.mark.spark
def test_killed_at_the_worst_moments(spark, documents, lake):
    documents.store({f"first-{number}": b"there before" for number in range(2_000)})
    kill_at(documents, lake, 1, "written")
    batch, done, _ = state(lake)
    assert batch == done

    kill_at(documents, lake, 2, "committed")
    batch, done, _ = state(lake)
    assert batch == done + 1

    kill_at(documents, lake, 3, "folding")
    changelog = lake.changelog_table.open()
    assert changelog is not None
    assert changelog.version() > state(lake)[2]

    kill_at(documents, lake, 4, "driver")  # and the next begins at once, while Java is still there
    catch_up(spark, documents.url, lake)
    check(lake, documents)


def at_random(spark, documents: Documents, lake: Lake, rounds: int) -> None:
    documents.store({f"first-{number}": b"there before" for number in range(2_000)})
    for phase in range(rounds):
        kill_at(documents, lake, phase, "never", delay=random.Random(phase).uniform(0.01, 1.5))
    catch_up(spark, documents.url, lake)
    check(lake, documents)


@pytest.mark.spark
def test_killed_at_random(spark, documents, lake):
    at_random(spark, documents, lake, 3)


@pytest.mark.soak
def test_killed_at_random_often(spark, documents, lake):
    at_random(spark, documents, lake, 25)
