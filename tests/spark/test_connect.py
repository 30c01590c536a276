"""Spark Connect: a server and a client without Java, each in a process apart from the tests' session."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.spark import Lake
from penstock.spark.lake.current.current_table import merge_current
from tests.patience import PATIENCE
from tests.spark.buckets import check_changelog, current_of, numbered
from tests.spark.cluster import SPARK_HOME, Daemon, environment_with

pytestmark = pytest.mark.spark

APP = Path(__file__).parent / "connect_app.py"


@pytest.fixture
def environment():
    return environment_with(Path(sys.executable)) | {"PYTHONPATH": str(Path(penstock.__file__).parents[1])}


@pytest.fixture
def server(tmp_path, environment):
    """Return the address of a Connect server on one core, at which the formats are not registered."""
    settings = {
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[1]"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with Daemon(tmp_path / "server.log", command, environment) as server:
        yield f"sc://127.0.0.1:{server.wait_for_output(r'Spark Connect server started at: .*:([0-9]+)')}"


def test_client_reads_and_follows_without_registering_formats(documents, lake, tmp_path, server, environment):
    documents.store(numbered(0, 100))
    other = Lake(tmp_path / "other")
    command = [sys.executable, str(APP), server, documents.url, str(lake.path), str(other.path)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = {name: value for line in ran.stdout.splitlines() for name, value in json.loads(line).items()}
    assert results == {"found": sorted(documents.keys), "ended": True, "registered": 100, "run": 100}
    merge_current(lake)
    for written in (lake, other):
        assert check_changelog(written).num_rows == 100
        assert current_of(written) == documents.contents()
