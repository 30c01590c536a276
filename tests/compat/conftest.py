import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.certificates import make_certificates
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Flush
from tests.compat.serving import Serving
from tests.node.wire_client import connected as memcached_client
from tests.patience import PATIENCE


@pytest.fixture
def open_node():
    """A node without login, because old memcached programs have no login. They use vbucket 0 only."""
    with Node.running(["default"], vbuckets=16) as node:
        yield node


@pytest.fixture(scope="session")
def node():
    """A node with the buckets `default` and `beer` in memory. All tests share it, so their keys must differ."""
    with Serving.running("--bucket", "default", "--bucket", "beer", "--vbuckets", 64) as serving:
        yield serving


@pytest.fixture(scope="session")
def durable_node(tmp_path_factory):
    """A node with the bucket `default` on disk."""
    with Serving.running("--vbuckets", 64, "--data-dir", tmp_path_factory.mktemp("data")) as serving:
        yield serving


class Certified(NamedTuple):
    """A node with TLS, and with the users `alice` and `reader`.

    Attributes:
        url: the connection string with TLS.
        plain_url: the connection string without TLS.
        files: directory of the certificates that `penstock tls init` creates.
        https_port: the HTTP port with TLS.
    """

    url: str
    plain_url: str
    files: Path
    https_port: int


@pytest.fixture(scope="session")
def tls_node(tmp_path_factory):
    """A node with TLS and a users file. Tests share it, so their keys must differ."""
    directory = tmp_path_factory.mktemp("tls")
    for name, made in make_certificates([], "alice", 7, datetime.now(UTC)).items():
        (directory / f"{name}.pem").write_bytes(made.certificate)
        (directory / f"{name}.key").write_bytes(made.key)
    with change_users(directory / "users.json") as accounts:
        accounts["alice"] = make_account(User.from_texts("alice", ["admin"]), "wonderland")
        accounts["reader"] = make_account(User.from_texts("reader", ["data_reader[*]"]), "only-that")
    options = {
        "users": directory / "users.json",
        "certificate": directory / "server.pem",
        "key": directory / "server.key",
        "client_ca": directory / "ca.pem",
        "tls_port": 0,
    }
    with Node.running(["default"], vbuckets=64, **options) as node:
        url, plain_url = f"couchbases://127.0.0.1:{node.tls_port}", f"couchbase://127.0.0.1:{node.kv_port}"
        yield Certified(url, plain_url, directory, node.https_port)


@pytest.fixture(scope="module")
def connect_cluster():
    """Return a function that connects Couchbase's Python client. Equal arguments return the same connection."""
    from couchbase.auth import CertificateAuthenticator, PasswordAuthenticator
    from couchbase.cluster import Cluster
    from couchbase.options import ClusterOptions

    clusters = {}

    def connect_cluster(url, *login, **certificates):
        """Return the cluster at an URL.

        Args:
            url: the connection string.
            login: user name and password; none: those of a node without users.
            certificates: keyword arguments of the authenticator.
        """
        if (url, login) not in clusters:
            if login:
                authenticator = PasswordAuthenticator(*login, **certificates)
            elif certificates:
                authenticator = CertificateAuthenticator(**certificates)
            else:
                authenticator = PasswordAuthenticator(Serving.user, Serving.password)
            cluster = Cluster(url, ClusterOptions(authenticator))
            cluster.wait_until_ready(timedelta(seconds=PATIENCE))
            clusters[url, login] = cluster
        return clusters[url, login]

    yield connect_cluster
    for cluster in clusters.values():
        cluster.close()


@pytest.fixture
def cluster(connect_cluster, node):
    return connect_cluster(node.url)


@pytest.fixture
def bucket(cluster):
    return cluster.bucket("default")


@pytest.fixture
def collection(node, bucket):
    """The default collection, empty."""
    with memcached_client(node) as client:
        assert client.status(Flush()) == Status.SUCCESS
    return bucket.default_collection()


@pytest.fixture
def durable_collection(connect_cluster, durable_node):
    return connect_cluster(durable_node.url).bucket("default").default_collection()


@pytest.fixture
def now() -> Callable[[], float]:
    return time.time


@pytest.fixture
def wait_until():
    """Return a function that repeats a check until it returns true."""

    def wait_until(check: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not check():
            assert time.monotonic() < deadline, f"the check stayed false for {PATIENCE:g} s"

    return wait_until
