"""Kill the pipeline's processes at the worst moments, while the bucket changes, and restart the pipeline each time.

Two indexes and another bucket depend on the changelog, and must equal the bucket in the end.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from deltalake import DeltaTable

from penstock.node import Node
from penstock.spark import Lake
from penstock.spark.dependents.kinds.fulltext import FullText
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex
from penstock.spark.pipeline.definition.definition import read_definition
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from penstock.spark.pipeline.state.lake_status import read_status
from penstock.spark.storage.object_path import LakePath
from tests.patience import PATIENCE
from tests.spark.buckets import Documents, check_changelog, current_of
from tests.spark.test_protocols import fail_over
from tests.spark.version_model import model_versions, read_versions

ROOT = Path(__file__).parents[2]

KILLS = 100
"""Kills of the long test; at least half of them must fall inside a commit."""
LONGEST_DELAY = 0.5
"""Seconds from the first file of a batch to the latest kill."""

PIPELINE = """
lake = "lake"
[source.default]
url = "{url}"
max_changes_per_trigger = 400
trigger_seconds = 0.2
[current]
merge_rows = 1
merge_share = 0
[[table]]
collection = "_default"
name = "numbers"
schema = "n BIGINT, parts ARRAY<INT>"
key = "{{phase STRING}}-{{number INT}}"
children = ["parts"]
[[table]]
collection = "_default"
name = "versions"
schema = "n BIGINT"
mode = "history"
[[table]]
collection = "_default"
name = "log"
schema = "n BIGINT"
mode = "changes"
[[index]]
name = "by_number"
path = "n"
type = "long"
[[fulltext]]
name = "words"
[[sink]]
kind = "bucket"
name = "copy"
url = "{copy}"
"""


class Pipeline(NamedTuple):
    """A pipeline from one bucket to its tables and to another bucket, and the file that declares it.

    Attributes:
        file: the file.
        node: the node of both buckets.
        documents, copy: the buckets.
        lake: the tables.
        has_failovers: whether vbuckets of the bucket fail over while drivers run.
    """

    file: Path
    node: Node
    documents: Documents
    copy: Documents
    lake: Lake
    has_failovers: bool = False


@pytest.fixture
def pipeline(tmp_path):
    with (
        Node.running(["default", "copy"], vbuckets=16) as node,
        Documents.of(node.url("default")) as documents,
        Documents.of(node.url("copy")) as copy,
    ):
        file = tmp_path / "pipeline.toml"
        file.write_text(PIPELINE.format(url=node.url("default"), copy=node.url("copy")))
        yield Pipeline(file, node, documents, copy, Lake(tmp_path / "lake"))


class Driver:
    """A pipeline in a process group of its own, which a test kills or which kills itself."""

    def __init__(self, pipeline: Pipeline, point: str) -> None:
        command = [sys.executable, "-m", "tests.spark.driver", str(pipeline.file), point]
        self.log = pipeline.file.with_name("driver.log")
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
            )

    def kill(self, *, java: bool) -> None:
        os.killpg(self.process.pid, signal.SIGKILL) if java else self.process.kill()

    def kill_after(self, seconds: float, *, java: bool) -> None:
        """Kill the driver after a while, which it must outlive."""
        with pytest.raises(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.kill(java=java)

    def wait_until_killed(self) -> None:
        """Wait for the end of the driver's Python process, and assert that it was killed."""
        assert self.process.wait(PATIENCE) == -signal.SIGKILL, self.log.read_text()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, which is checked every few milliseconds; the driver must not end before."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            threading.Event().wait(0.002)

    def clean_up(self) -> None:
        """Wait until Java has noticed that its driver was killed, and has ended."""
        deadline = time.monotonic() + PATIENCE
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
    """Changes documents until it is stopped; each phase has its own keys, so that no later phase hides a loss.

    With failovers, a vbucket loses its newest changes about once a second.
    """

    def __init__(self, pipeline: Pipeline, phase: int) -> None:
        self._pipeline = pipeline
        self._documents = pipeline.documents
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
        while not self._stopping.wait(0.05):
            keys = [f"{self._phase}-{chance.randrange(number + 1)}" for _ in range(5)]
            keys += [f"{self._phase}-{number + more}" for more in range(1, 6)]
            number += 5
            self._documents.store({key: document(number, self._phase) for key in keys})
            self._documents.remove(chance.sample(keys, 2))
            if self._pipeline.has_failovers and not chance.randrange(10):
                lose_newest(self._pipeline.node, chance.randrange(16), chance.randrange(1, 20))


def lose_newest(node: Node, vbucket: int, count: int) -> None:
    """Let a vbucket fail over to a copy without its newest changes."""
    found = node.buckets["default"].store.vbuckets[vbucket]
    fail_over(node, vbucket, max(node.call(lambda: found.changes.high_seqno) - count, 0))


def document(number: int, phase: int) -> bytes:
    parts = [phase, *range(number % 4)]
    return json.dumps({"n": number, "text": f"number {number} of phase{phase}", "parts": parts}).encode()


def check(pipeline: Pipeline) -> list[tuple[int, int, bytes, int]]:
    """Assert that the changelog has each change once, the newest of every key, and dependents equal to the bucket.

    Returns:
        Vbucket, seqno, key and cas of each change.
    """
    documents, lake = pipeline.documents, pipeline.lake
    changes = check_changelog(lake)
    rows = list(zip(*(changes[name].to_pylist() for name in ("vbucket", "seqno", "key", "cas")), strict=True))
    assert len(rows) == len({row[:2] for row in rows})  # (vbucket, seqno) is unique because no rollback occurred
    assert set(changes["history"].to_pylist()) == {0}
    assert documents.newest() <= set(rows)
    check_dependents(pipeline)
    return rows


def check_dependents(pipeline: Pipeline) -> None:
    """Assert that the current table, the typed tables, both indexes and the other bucket equal the bucket."""
    documents, lake = pipeline.documents, pipeline.lake
    held = documents.contents()
    assert current_of(lake) == held
    lines = DeltaTable(str(lake.path / "tables" / "numbers")).to_pyarrow_table().to_pylist()
    assert sorted((line["_key"].encode(), line["n"], json.loads(line["_rest"])) for line in lines) == [
        (key, json.loads(value)["n"], {"text": json.loads(value)["text"]}) for key, (_, value) in sorted(held.items())
    ]
    assert all(f"{line['phase']}-{line['number']}" == line["_key"] for line in lines)
    parts = DeltaTable(str(lake.path / "tables" / "numbers_parts")).to_pyarrow_table().to_pylist()
    assert sorted((line["_key"].encode(), line["_position"], line["value"]) for line in parts) == [
        (key, at, part)
        for key, (_, value) in sorted(held.items())
        for at, part in enumerate(json.loads(value)["parts"])
    ]
    check_versions(lake)
    pipeline.copy.keys = documents.keys
    assert pipeline.copy.contents() == held
    found = SecondaryIndex(lake, "by_number", "n", "long").scan()
    numbers = {key: json.loads(value)["n"] for key, (_, value) in held.items()}
    assert (
        dict(zip((key.encode() for key in found["key"].to_pylist()), found["value"].to_pylist(), strict=True))
        == numbers
    )
    words = FullText(lake, "words")
    for phase in range(3):
        of_phase = {key for key, (_, value) in held.items() if b'phase%d"' % phase in value}
        assert {key for _, _, key in words.matches(f"phase{phase}")} == of_phase


def check_versions(lake: Lake) -> None:
    """Assert that the tables of versions and of changes follow from the changelog."""
    versions, log = (DeltaTable(str(lake.path / "tables" / name)).to_pyarrow_table() for name in ("versions", "log"))
    rows = [each for each in lake.changelog().to_pylist() if each["event"] in ("mutation", "deletion", "rollback")]
    rows.sort(key=lambda each: (each["vbucket"], each["history"], each["event"] != "rollback", each["seqno"]))
    assert read_versions(versions.to_pylist()) == model_versions(rows)
    places = [(each["_vbucket"], each["_history"], each["_seqno"], each["_event"]) for each in log.to_pylist()]
    assert sorted(places) == sorted((each["vbucket"], each["history"], each["seqno"], each["event"]) for each in rows)


def list_numbers(log: LakePath) -> set[int]:
    """Return the batches in one of the logs of a checkpoint."""
    return {int(entry.name) for entry in log.iterdir() if entry.name.isdigit()} if log.exists() else set()


def state(lake: Lake) -> tuple[int, int, int]:
    """Return the changelog's newest batch, the newest batch that Spark has logged as done, and the merged version."""
    changelog, current = lake.changelog_table.open(), lake.current_table.open()
    query = lake.read_query_id()
    assert changelog is not None
    assert query is not None
    merged = current.transaction_version(str(changelog.metadata().id)) if current is not None else None
    done = max(list_numbers(lake.checkpoint / "commits"), default=-1)
    return changelog.transaction_version(query) or 0, done, -1 if merged is None else merged


@contextmanager
def running_driver(pipeline: Pipeline, phase: int, point: str = "never") -> Iterator[Driver]:
    """Run a driver on a changing bucket in the block, which waits for its end."""
    driver = Driver(pipeline, point)
    try:
        with Workload(pipeline, phase):
            yield driver
    finally:
        if driver.process.poll() is None:
            driver.kill(java=True)


def kill_at(pipeline: Pipeline, phase: int, point: str) -> None:
    """Run a driver on a changing bucket until it kills itself at `point`."""
    with running_driver(pipeline, phase, point) as driver:
        driver.wait_until_killed()
    if point != "driver":
        driver.clean_up()


def kill_after_commit_began(pipeline: Pipeline, phase: int) -> str:
    """Run a driver on a changing bucket, and kill it within moments of the first file of one of its next batches.

    Returns:
        The state of the batch: "written" if its files are not committed, "committed" if its end is not logged, "done".
    """
    chance = random.Random(phase)
    lake = pipeline.lake
    offsets, commits = (lake.checkpoint / name for name in ("offsets", "commits"))
    target = max(list_numbers(commits), default=-1) + chance.choice([1, 1, 2, 3])
    with running_driver(pipeline, phase) as driver:
        driver.wait_for((offsets / str(target)).exists)
        before = list_files(lake)
        driver.wait_for(lambda: bool(list_files(lake) - before) or (commits / str(target)).exists())
        # Mostly soon: a commit takes 0.2 s or more.
        driver.kill_after(LONGEST_DELAY * chance.random() ** 3, java=phase % 2 == 0)
        is_done = (commits / str(target)).exists()  # after the kill, so that a commit which ends meanwhile is none
        driver.wait_until_killed()
    driver.clean_up()
    if is_done:
        return "done"
    changelog, query = lake.changelog_table.open(), lake.read_query_id()
    batch = None if changelog is None or query is None else changelog.transaction_version(query)
    return "written" if batch is None or batch < target else "committed"


def list_files(lake: Lake) -> set[str]:
    """Return the data files in the directory of the changelog, also those that no commit names."""
    return {str(path) for path in lake.changelog_table.path.glob("vbucket_range=*/*.parquet")}


def store_first_documents(pipeline: Pipeline) -> None:
    pipeline.documents.store({f"first-{number}": document(number, 0) for number in range(2_000)})


def catch_up(spark, pipeline: Pipeline) -> None:
    text = pipeline.file.read_text()
    pipeline.file.write_text(text.replace("max_changes_per_trigger = 400\n", ""))  # one batch for all remaining changes
    (progress,) = run_pipeline(read_definition(str(pipeline.file)), available_now=True, spark=spark)
    assert {each.error for each in progress.dependents} == {None}


@pytest.mark.spark
def test_killed_at_the_worst_moments(spark, pipeline):
    store_first_documents(pipeline)
    kill_at(pipeline, 1, "written")
    batch, done, _ = state(pipeline.lake)
    assert batch == done

    kill_at(pipeline, 2, "committed")
    batch, done, _ = state(pipeline.lake)
    assert batch == done + 1
    found = read_status(pipeline.lake)
    assert (found.state, len(found.dependents)) == ("killed", 8)

    kill_at(pipeline, 3, "merging")
    changelog = pipeline.lake.changelog_table.open()
    assert changelog is not None
    assert changelog.version() > state(pipeline.lake)[2]

    kill_at(pipeline, 4, "merged")
    merged = {each.name: each.version for each in read_status(pipeline.lake).dependents}
    assert merged["current"] == merged["numbers"] > merged["numbers_parts"]

    kill_at(pipeline, 5, "driver")  # the next run begins at once, while the old Java process still runs
    catch_up(spark, pipeline)
    check(pipeline)


def kill_at_random(spark, pipeline: Pipeline, rounds: int) -> Counter[str]:
    """Kill drivers after the beginning of a commit, and return the number of kills by the state of the batch."""
    store_first_documents(pipeline)
    found: Counter[str] = Counter()
    for phase in range(rounds):
        found[kill_after_commit_began(pipeline, phase)] += 1
        sys.stdout.write(f"{phase + 1} kills: {dict(found)}\n")
    catch_up(spark, pipeline)
    check(pipeline)
    return found


@pytest.mark.spark
def test_killed_at_random(spark, pipeline):
    kill_at_random(spark, pipeline, 2)


@pytest.mark.soak
def test_killed_at_random_often(spark, pipeline, capsys):
    found = kill_at_random(spark, pipeline, KILLS)
    inside = KILLS - found["done"]
    with capsys.disabled():
        sys.stdout.write(f"\n{KILLS} kills, {inside} of them inside a commit of the changelog: {dict(found)}\n")
    assert inside >= KILLS / 2
