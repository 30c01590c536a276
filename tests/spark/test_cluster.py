"""The pipeline on a standalone cluster: a master and two workers of one core, to which the package must be sent."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from penstock.client.blocking import LoopThread
from penstock.client.bucket import Bucket
from penstock.client.connect.address import parse_address
from penstock.client.login.credentials import Credentials
from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.spark import Lake
from penstock.spark.shipping import write_archive
from tests.patience import PATIENCE
from tests.spark.buckets import Documents, check_changelog, current_of, numbered
from tests.spark.cluster import Cluster, Gate

pytestmark = pytest.mark.spark

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "cluster" / "follow.py"
PASSWORD = "a word that nobody says"
LOGIN = {"PENSTOCK_USERNAME": "ada", "PENSTOCK_PASSWORD": PASSWORD}
SHOUT = """
import pyarrow as pa
from letters import raise_letters


def shout(changes):
    values = pa.array([raise_letters(value) for value in changes["value"].to_pylist()], pa.binary())
    return changes.set_column(changes.column_names.index("value"), "value", values)
"""


@pytest.fixture
def documents(tmp_path):
    """Return a bucket that requires a login."""
    with change_users(tmp_path / "users.json") as accounts:
        accounts["ada"] = make_account(User.from_texts("ada", ["admin"]), PASSWORD, 4096)
    with Node.running(["default"], vbuckets=16, users=tmp_path / "users.json") as node, LoopThread() as loop:
        bucket = Bucket(parse_address(node.url("default"), Credentials("ada", PASSWORD)))
        loop.run(bucket.__aenter__())
        yield Documents(loop, bucket)
        loop.run(bucket.close())


def test_lost_executors_lose_and_repeat_nothing(documents, lake, tmp_path):
    """Two cores and two partitions, so each executor has half of a batch when one executor is lost."""
    documents.store(numbered(0, 60_000, size=100))
    with (
        Cluster.running(tmp_path / "cluster") as cluster,
        Gate.before(documents.bucket.address.hosts[0][1]) as gate,
    ):
        # With spark-submit: one executor is killed, and its worker starts a new executor.
        gate.shut(limit=200_000)
        archive = write_archive(tmp_path / "penstock.zip")
        command = ["--py-files", str(archive), *map(str, (HERE / "cluster_app.py", EXAMPLE, gate.url, lake.path))]
        with cluster.submit(*command, **LOGIN) as driver:
            found = json.loads(driver.wait_for_output(r"^found (.*)$"))
            assert found == [{"place": "./penstock.zip/penstock/__init__.py", "native": False}] * 2
            driver.wait_for(lambda: gate.holds(2))
            os.kill(cluster.workers[0].wait_for_executor(), signal.SIGKILL)
            gate.open()
            tasks = json.loads(driver.wait_for_output(r"^tasks (.*)$"))
            assert len([executor for executor, number in tasks.items() if number]) >= 2, tasks
            assert driver.process.wait(PATIENCE) == 0
        assert check_changelog(lake).num_rows == 60_000
        assert current_of(lake) == documents.contents()

        # With the command `penstock`, which sends the package itself: a worker is killed together with its executor.
        documents.store(numbered(0, 50_000, "again", size=100))
        assert documents.remove([f"key-{number}" for number in range(50_000, 51_000)]) == 1_000
        gate.shut(limit=200_000)
        command = [sys.executable, "-m", "penstock", "pipeline", "run", "--to", str(lake.path), "--available-now"]
        command += ["--master", cluster.master, "--url", gate.url, "--partitions", "2"]
        with cluster.drive(command, LOGIN) as driver:
            driver.wait_for(lambda: gate.holds(2))
            cluster.workers[1].kill()
            gate.open()
            driver.wait_for_output("(51,000) rows written;")
            assert driver.process.wait(PATIENCE) == 0
        assert check_changelog(lake).num_rows == 60_000 + 51_000
        assert current_of(lake) == documents.contents()

        # A transform: executors have other directories, and get its modules with their tasks.
        (tmp_path / "shout.py").write_text(SHOUT)
        (tmp_path / "letters.py").write_text("def raise_letters(value):\n    return value.strip().upper()\n")
        file = tmp_path / "pipeline.toml"
        file.write_text(
            f'lake = "shouted"\n[source.s]\nurl = "{gate.url}"\nkey_pattern = "^key-123"\ntransform = "shout:shout"\n'
        )
        command = [sys.executable, "-m", "penstock", "pipeline", "run", str(file), "--available-now"]
        with cluster.drive([*command, "--master", cluster.master], LOGIN) as driver:
            assert driver.process.wait(PATIENCE) == 0
        values = {value for _, value in current_of(Lake(tmp_path / "shouted")).values()}
        assert values == {
            value.strip().upper() for key, (_, value) in documents.contents().items() if key[:7] == b"key-123"
        }
        assert PASSWORD not in cluster.collect_output()
