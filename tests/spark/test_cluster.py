"""The pipeline on a standalone cluster: a master and two workers of one core, which have to be sent the package."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.client.address import parse_address
from penstock.client.blocking import LoopThread
from penstock.client.bucket import Bucket
from penstock.client.credentials import Credentials
from penstock.node import Node
from penstock.node.login import User
from penstock.node.login.users import account_of
from penstock.node.login.users_file import change_users
from penstock.spark.shipping import write_archive
from tests.spark.buckets import Documents, check_changelog, current_of, numbered
from tests.spark.cluster import SECONDS, Cluster, Daemon, Gate

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "cluster" / "follow.py"
PASSWORD = "a word that nobody says"
LOGIN = {"PENSTOCK_USERNAME": "ada", "PENSTOCK_PASSWORD": PASSWORD}


@pytest.fixture
def documents(tmp_path):
    """A bucket that wants a login."""
    with change_users(tmp_path / "users.json") as accounts:
        accounts["ada"] = account_of(User.of("ada", ["admin"]), PASSWORD, 4096)
    with Node.running(["default"], vbuckets=16, users=tmp_path / "users.json") as node, LoopThread() as loop:
        bucket = Bucket(parse_address(node.url("default"), Credentials("ada", PASSWORD)))
        loop.run(bucket.__aenter__())
        yield Documents(loop, bucket)
        loop.run(bucket.close())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster.running(tmp_path_factory.mktemp("spark") / "cluster") as cluster:
        yield cluster


def test_the_command_runs_a_pipeline_on_a_cluster(documents, lake, cluster):
    documents.store(numbered(0, 30_000))
    command = [sys.executable, "-m", "penstock", "pipeline", "run", "--to", str(lake.path), "--available-now"]
    command += ["--master", cluster.master, "--url", documents.url, "--partitions", "2"]
    with cluster.drive(command, LOGIN) as driver:
        driver.says("(30,000) rows written;")
        assert driver.process.wait(SECONDS) == 0
    assert check_changelog(lake).num_rows == 30_000
    assert current_of(lake) == documents.contents()


def told(driver: Daemon, number: int) -> Any:
    return json.loads(driver.says(r"^told (.*)$", times=number))


def test_executors_that_are_lost_change_nothing(documents, lake, tmp_path, cluster):
    archive = write_archive(tmp_path / "penstock.zip")
    os.mkfifo(orders := tmp_path / "orders")
    documents.store(numbered(0, 60_000, size=100))
    with (
        Gate.before(documents.bucket.address.hosts[0][1]) as gate,
        cluster.submit(
            *("--py-files", str(archive)),
            *map(str, (HERE / "cluster_app.py", orders, EXAMPLE, gate.url, lake.path)),
            **LOGIN,
        ) as driver,
        os.fdopen(os.open(orders, os.O_RDWR), "w") as order,
    ):
        found = told(driver, 1)
        assert found == [{"place": "./penstock.zip/penstock/__init__.py", "native": False}] * 2

        gate.shut(limit=200_000)
        print("run", file=order, flush=True)
        driver.wait_for(lambda: gate.holds(2))
        os.kill(cluster.workers[0].executor(), signal.SIGKILL)
        gate.open()
        assert len({executor for executor, tasks in told(driver, 2).items() if tasks}) >= 2
        assert check_changelog(lake).num_rows == 60_000
        assert current_of(lake) == documents.contents()

        documents.store(numbered(0, 50_000, "again", size=100))
        assert documents.remove([f"key-{number}" for number in range(50_000, 51_000)]) == 1_000
        gate.shut(limit=200_000)
        print("run", file=order, flush=True)
        driver.wait_for(lambda: gate.holds(2))
        cluster.workers[1].kill()  # with its executor: a machine that is gone
        gate.open()
        told(driver, 3)
        assert check_changelog(lake).num_rows == 60_000 + 51_000
        assert current_of(lake) == documents.contents()
        assert PASSWORD not in cluster.said()
