"""Trendyol's go-dcp with its default settings: rollback mitigation, checkpoints and membership in the bucket itself."""

import asyncio
import json
from contextlib import contextmanager

import pytest

from penstock import connect
from penstock.wire.codec.statuses import Status
from tests.compat.installed import go_program
from tests.compat.running import Program
from tests.compat.serving import Serving
from tests.node.http.web_client import WebClient
from tests.node.wire_client import connected
from tests.ports import free_ports

VBUCKETS = 16
DOCUMENTS = {f"first-{number}" for number in range(50)}


def write(client, keys):
    for number, key in enumerate(sorted(keys)):
        assert client.set(key.encode(), b'{"n":1}', vbucket=number % VBUCKETS).specific == Status.SUCCESS


@contextmanager
def follow(serving, bucket, membership="couchbase"):
    """Run a member of one consumer group, always the same.

    `static` membership: the only member. By default a member that has ended counts as one for another minute.
    """
    (api_port,) = free_ports(1)
    url = f"http://127.0.0.1:{serving.ready['http_port']}"
    command = [go_program("stream"), url, serving.user, serving.password, bucket, "group", membership, str(api_port)]
    with Program.running(command) as program:
        yield program


@contextmanager
def follow_over_tls(certified, bucket):
    """Run the only member of a consumer group.

    SSL_CERT_FILE: go-dcp's requests over HTTP know only the machine's authorities, not that of `rootCAPath`.
    """
    (api_port,) = free_ports(1)
    url, authority = f"http://127.0.0.1:{certified.https_port}", str(certified.files / "ca.pem")
    place = [url, "alice", "wonderland", bucket]
    command = [go_program("stream"), *place, "encrypted", "static", str(api_port), authority]
    with Program.running(command, {"SSL_CERT_FILE": authority}) as program:
        yield program


def read_keys(program, event, expected):
    """Read changes until as many keys as expected had this event; the keys must be the expected ones."""
    lines = program.read_until(lambda lines: len(keys_of(lines, event)) >= len(expected))
    assert keys_of(lines, event) == expected


def keys_of(lines, event):
    changes = [json.loads(line) for line in lines]
    return {change["key"] for change in changes if change["event"] == event}


@pytest.mark.parametrize(
    ("bucket", "on_disk"),
    [
        pytest.param("default", False, id="couchbase in memory"),
        pytest.param("default", True, id="couchbase on disk"),
        pytest.param("passing", False, id="ephemeral"),
    ],
)
def test_consumer_group_resumes(tmp_path, bucket, on_disk):
    options = ["--data-dir", tmp_path / "data"] if on_disk else []
    with Serving.running("--vbuckets", VBUCKETS, *options) as serving:
        if bucket != "default":
            web = WebClient(serving, port=serving.ready["http_port"])
            made = web.post("/pools/default/buckets", name=bucket, bucketType="ephemeral", ramQuotaMB=100)
            assert made.status == 202
        with connected(serving, bucket) as client:
            write(client, DOCUMENTS)
            with follow(serving, bucket) as program:
                read_keys(program, "mutation", DOCUMENTS)
                write(client, {"live"})
                read_keys(program, "mutation", {"live"})
                client.delete(b"live")
                read_keys(program, "deletion", {"live"})
                assert program.terminate() == 0
            write(client, {"meanwhile"})
            with follow(serving, bucket, "static") as program:
                read_keys(program, "mutation", {"meanwhile"})


def test_password_over_tls_needs_no_option(tls_node):
    url = f"{tls_node.url}/default?ca={tls_node.files / 'ca.pem'}"

    async def write_one(key):
        async with connect(url, username="alice", password="wonderland") as bucket:
            await bucket.upsert(key, b'{"n":1}')

    asyncio.run(write_one("go-dcp before"))
    with follow_over_tls(tls_node, "default") as program:
        program.read_until(lambda lines: "go-dcp before" in keys_of(lines, "mutation"))
        asyncio.run(write_one("go-dcp live"))
        program.read_until(lambda lines: "go-dcp live" in keys_of(lines, "mutation"))
        assert program.terminate() == 0
