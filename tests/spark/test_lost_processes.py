"""Python processes of Spark that are killed while a pipeline runs."""

import os
import signal
from pathlib import Path

import pytest

from penstock.errors import Error
from tests.spark.buckets import check_changelog, numbered
from tests.spark.running import running

pytestmark = pytest.mark.spark


def list_children(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(state[1]) == parent:
            found.append(int(entry.name))
    return found


def list_spark_processes() -> list[int]:
    """Return the forks that are Spark's Python processes."""
    (server,) = (
        child for child in list_children(os.getpid()) if b"fork_server" in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    return list_children(server)


def test_run_survives_killed_workers(spark, documents, lake):
    documents.store(numbered(0, 100))
    with running(spark, documents.url, lake) as run:
        run.reached(100)
        workers = [worker for process in list_spark_processes() for worker in list_children(process)]
        assert workers
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        documents.store(numbered(100, 200))
        run.reached(200)
    assert check_changelog(lake).num_rows == 200


def test_killed_planner_is_named_as_the_cause(spark, documents, lake):
    documents.store(numbered(0, 100))

    def follow() -> None:
        with running(spark, documents.url, lake) as run:
            run.reached(100)
            planners = [process for process in list_spark_processes() if not list_children(process)]
            assert planners
            for planner in planners:
                os.kill(planner, signal.SIGKILL)
            run.until(lambda: False)

    with pytest.raises(Error, match=r"^a Python process of Spark ended unexpectedly: it was killed"):
        follow()
