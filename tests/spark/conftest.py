from typing import Any

import pytest
from pyspark import SparkContext

from penstock.node import Node
from penstock.spark import Lake
from penstock.spark.runtime.spark_session import local_session
from tests.patience import PATIENCE
from tests.spark.buckets import Documents, MicroBatches


@pytest.fixture(scope="session")
def spark():
    """Return one session for all tests, because it takes longer to start than most tests take to run."""
    session = local_session(2)
    yield session
    session.stop()
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=PATIENCE)


@pytest.fixture
def node():
    with Node.running(["default"], vbuckets=16) as node:
        yield node


@pytest.fixture
def documents(node):
    with Documents.of(node.url("default")) as documents:
        yield documents


@pytest.fixture
def follow():
    """Return a function that creates stream readers, which run micro-batches without Spark."""
    queries = []

    def start(url, **options):
        queries.append(MicroBatches(url, **options))
        return queries[-1]

    yield start
    for query in queries:
        query.reader.stop()


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake")
