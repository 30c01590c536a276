"""A bucket on disk, followed into tables: loads, changes, kills with unsaved changes in memory, a restored copy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.ports import free_ports
from tests.spark.buckets import Documents, check_changelog, compact, current_of, generated, numbered
from tests.spark.running import running
from tests.waiting import wait_readable

BEER = Path(__file__).parents[3] / "shared" / "data" / "beer-sample.jsonl"
VBUCKETS = 64
PAST = 1_600_000_000
"""An expiry time in 2020, in seconds since the epoch; 50 years and less would be relative to now."""

pytestmark = pytest.mark.spark


class Served:
    """`penstock serve` as a process that can be killed and restarted on the same port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (self.port,) = free_ports(1)  # no outgoing connection takes it while the node restarts
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextmanager
    def running(cls, directory: Path) -> Iterator[Served]:
        served = cls(directory)
        served.start()
        try:
            yield served
        finally:
            served.kill()

    @property
    def url(self) -> str:
        return f"couchbase://127.0.0.1:{self.port}/beer"

    def start(self, *options: str) -> None:
        """Start the command with further options."""
        where = ["--port", str(self.port), "--http-port", "0", "--data-dir", str(self.directory), "--json"]
        command = [sys.executable, "-m", "penstock", "serve", "--bucket", "beer", "--vbuckets", str(VBUCKETS)]
        self._process = subprocess.Popen(
            [*command, *where, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        ready = wait_readable([self._process.stdout], PATIENCE)
        assert ready, "the node did not report that it serves"
        json.loads(self._process.stdout.readline())

    def end(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)
        self._process.wait(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self.end(signal.SIGKILL)

    def restart(self, *options: str) -> None:
        self.end(signal.SIGTERM)
        self.start(*options)


def beers() -> dict[str, bytes]:
    """Return each fifth document of beer-sample, or the same number of generated ones where the sample is missing.

    All documents are compared after each progress of the pipeline, which takes most of the test's time.
    """
    if not BEER.exists():
        return generated(1_461)
    lines = map(json.loads, BEER.read_text("utf-8").splitlines()[::5])
    return {line["id"]: compact(line["doc"]) for line in lines}


def test_the_tables_are_the_bucket_through_kills_and_restored_copies(spark, lake, tmp_path):
    stored = beers()
    keys = sorted(stored)
    with Served.running(tmp_path / "data") as node, Documents.of(node.url) as documents:

        def is_followed() -> bool:
            return current_of(lake) == documents.contents()

        documents.store(stored)
        with running(spark, node.url, lake) as run:
            run.reached(len(stored))
            assert is_followed()

            documents.store({key: b"changed " + stored[key] for key in keys[:200]})
            assert documents.remove(keys[200:300]) == 100
            documents.store({key: stored[key] for key in keys[300:320]}, expiry=PAST)
            assert len(documents.contents()) == len(stored) - 120
            run.until(is_followed)

            # All changes up to here are on disk. Later changes are only in memory, but the tables have them.
            node.restart("--commit-ms", "3600000", "--commit-count", "1000000000")
            before = documents.contents()
            documents.store(numbered(0, 60, "in memory only"))
            documents.remove(keys[400:420])
            run.until(is_followed)
            node.kill()
            node.start()
            assert documents.contents() == before
            run.until(is_followed)
            lost = rollbacks(lake)
            assert lost, "the node lost changes that the tables had, and no rollback was written"

            # The directory is copied while the node writes to it; later the copy replaces the directory.
            shutil.copytree(node.directory, tmp_path / "copy")
            before = documents.contents()
            documents.store(dict.fromkeys(keys[600:700], b"after the copy"))
            documents.remove(keys[800:840])
            run.until(is_followed)
            node.kill()
            shutil.rmtree(node.directory)
            (tmp_path / "copy").rename(node.directory)
            node.start()
            assert documents.contents() == before
            documents.store(numbered(60, 100, "in another branch"))
            run.until(is_followed)
            assert len(rollbacks(lake)) > len(lost)
        assert is_followed()
        check_changelog(lake)


def rollbacks(lake) -> list[int]:
    return [row["vbucket"] for row in check_changelog(lake).to_pylist() if row["event"] == "rollback"]
