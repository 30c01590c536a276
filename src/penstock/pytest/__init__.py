"""The plugin for pytest: nodes, buckets and clusters for tests of consumers, with faults on demand.

In: fixtures, fault proxies, the nodes behind them. Out: tests of this project.
pytest loads this module in each of its runs, so it imports nothing of Penstock before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from penstock.lazy_names import make_lazy_names

if TYPE_CHECKING:
    from penstock.pytest.cluster_bucket import PenstockBucket
    from penstock.pytest.fault_proxy import FaultProxy, ProxySide
    from penstock.pytest.node_cluster import PenstockCluster
    from penstock.pytest.proxied_node import PenstockNode

__all__ = ["FaultProxy", "PenstockBucket", "PenstockCluster", "PenstockNode", "ProxySide"]

_HOMES = {
    "FaultProxy": "penstock.pytest.fault_proxy",
    "PenstockBucket": "penstock.pytest.cluster_bucket",
    "PenstockCluster": "penstock.pytest.node_cluster",
    "PenstockNode": "penstock.pytest.proxied_node",
    "ProxySide": "penstock.pytest.fault_proxy",
}

__getattr__, __dir__ = make_lazy_names(globals(), _HOMES)

_VBUCKETS_OPTION = "penstock_vbuckets"
_SHARED = pytest.StashKey["PenstockCluster"]()
"""The node that the tests of this process share, while it runs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of the ini file."""
    parser.addini(_VBUCKETS_OPTION, "vbuckets of the buckets that Penstock's fixtures create", default="16")


def _read_vbuckets(config: pytest.Config) -> int:
    from penstock.digits import read_digits

    text = str(config.getini(_VBUCKETS_OPTION))
    number = read_digits(text, 1024, 1)
    if number is None or number & (number - 1):
        raise pytest.UsageError(f"{_VBUCKETS_OPTION} = {text}: expected a power of two from 1 to 1024")
    return number


@pytest.fixture(scope="session")
def _penstock_session(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[PenstockCluster]:
    """The one node that the tests of a process share."""
    from penstock.pytest.node_cluster import PenstockCluster

    directory = tmp_path_factory.mktemp("penstock")
    with PenstockCluster.running(1, directory, _read_vbuckets(pytestconfig)) as cluster:
        pytestconfig.stash[_SHARED] = cluster
        yield cluster
        del pytestconfig.stash[_SHARED]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Heal the shared node after each test, for fixtures of any scope."""
    yield
    if (cluster := item.config.stash.get(_SHARED, None)) is not None:
        cluster.reset()


@pytest.fixture(scope="session")
def penstock_node(_penstock_session: PenstockCluster) -> PenstockNode:
    """A node behind a fault proxy. All tests of a process share it; the end of a test heals it."""
    (node,) = _penstock_session.nodes
    return node


@pytest.fixture(scope="session")
def penstock_bucket_factory(_penstock_session: PenstockCluster) -> Callable[..., PenstockBucket]:
    """A function that creates a bucket on `penstock_node`, for fixtures of any scope. It exists until the run ends."""

    def create(name: str | None = None, *, vbuckets: int | None = None) -> PenstockBucket:
        """Return an empty bucket.

        Args:
            name: the name of the bucket; None: a name of its own.
            vbuckets: the number of vbuckets; None: the option of the ini file.
        """
        return _penstock_session.create_bucket(name, vbuckets)

    return create


@pytest.fixture
def penstock_bucket(_penstock_session: PenstockCluster) -> Iterator[PenstockBucket]:
    """An empty bucket of its own for each test, on `penstock_node`."""
    bucket = _penstock_session.create_bucket()
    yield bucket
    _penstock_session.delete_bucket(bucket)


@pytest.fixture
def penstock_cluster(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Callable[..., PenstockCluster]]:
    """A function that starts a cluster with a bucket: `penstock_cluster(3)`. The end of the test stops it."""
    from penstock.pytest.node_cluster import PenstockCluster

    with ExitStack() as stack:

        def start(
            nodes: int = 3, *, vbuckets: int | None = None, bucket: str | None = None, replicas: int = 0
        ) -> PenstockCluster:
            """Return a running cluster.

            Args:
                nodes: the number of nodes.
                vbuckets: the number of vbuckets; None: the option of the ini file.
                bucket: the name of the bucket; None: a name of its own.
                replicas: the number of copies of each vbucket that are kept up to date.
            """
            count = _read_vbuckets(pytestconfig) if vbuckets is None else vbuckets
            directory = tmp_path_factory.mktemp("penstock-cluster")
            cluster = stack.enter_context(PenstockCluster.running(nodes, directory, count))
            cluster.create_bucket(bucket, replicas=replicas)
            return cluster

        yield start
