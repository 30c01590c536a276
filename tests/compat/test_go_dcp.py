"""Trendyol's go-dcp with its default settings: rollback mitigation, with checkpoints and membership in the bucket."""

import asyncio
import json
from contextlib import contextmanager

import pytest

from penstock import Consumer, FilePositions, connect
from penstock.cli import main
from penstock.wire.codec.statuses import Status
from tests.compat.installed import find_go_program
from tests.compat.running import Program
from tests.compat.serving import Serving
from tests.node.http.web_client import WebClient
from tests.node.wire_client import connected
from tests.ports import free_ports

VBUCKETS = 16
DOCUMENTS = {f"first-{number}" for number in range(50)}


def write_documents(client, keys):
    for number, key in enumerate(sorted(keys)):
        assert client.set(key.encode(), b'{"n":1}', vbucket=number % VBUCKETS).specific == Status.SUCCESS


@contextmanager
def follow_bucket(serving, bucket, membership="couchbase"):
    """Run a member of a consumer group; all calls use the same group.

    With `static` membership it is the only member. By default, a member counts for a minute after its end.
    """
    (api_port,) = free_ports(1)
    url = f"http://127.0.0.1:{serving.ready['http_port']}"
    command = [
        find_go_program("stream"),
        url,
        serving.user,
        serving.password,
        bucket,
        "group",
        membership,
        str(api_port),
    ]
    with Program.running(command) as program:
        yield program


@contextmanager
def follow_bucket_over_tls(certified, bucket):
    """Run the only member of a consumer group.

    It needs SSL_CERT_FILE: the HTTPS requests of go-dcp trust the machine's authorities, and ignore `rootCAPath`.
    """
    (api_port,) = free_ports(1)
    url, authority = f"http://127.0.0.1:{certified.https_port}", str(certified.files / "ca.pem")
    place = [url, "alice", "wonderland", bucket]
    command = [find_go_program("stream"), *place, "encrypted", "static", str(api_port), authority]
    with Program.running(command, {"SSL_CERT_FILE": authority}) as program:
        yield program


def expect_keys(program, event, expected):
    """Read changes until as many keys as expected had the event, and check that they are the expected keys."""
    lines = program.read_until(lambda lines: len(collect_keys(lines, event)) >= len(expected))
    assert collect_keys(lines, event) == expected


def collect_keys(lines, event):
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
            write_documents(client, DOCUMENTS)
            with follow_bucket(serving, bucket) as program:
                expect_keys(program, "mutation", DOCUMENTS)
                write_documents(client, {"live"})
                expect_keys(program, "mutation", {"live"})
                client.delete(b"live")
                expect_keys(program, "deletion", {"live"})
                assert program.terminate() == 0
            write_documents(client, {"meanwhile"})
            with follow_bucket(serving, bucket, "static") as program:
                expect_keys(program, "mutation", {"meanwhile"})


def test_group_moves_to_a_consumer_of_penstock(tmp_path):
    """`penstock positions import` reads go-dcp's checkpoints from the bucket. The consumer continues there."""
    with Serving.running("--vbuckets", VBUCKETS) as serving, connected(serving) as client:
        write_documents(client, DOCUMENTS)
        with follow_bucket(serving, "default", "static") as program:
            expect_keys(program, "mutation", DOCUMENTS)
            assert program.terminate() == 0
        url, store = f"{serving.url}/default", tmp_path / "positions"
        command = ["positions", "import", "group:group", str(store), "--format", "go-dcp", "--url", url]
        assert main(command) == 0
        write_documents(client, {"meanwhile"})

        async def read_rest():
            async with connect(url) as bucket, Consumer(bucket, FilePositions(store), stop="now") as consumer:
                return {change.key async for change in consumer.changes()}

        own = b"_connector:cbgo:"
        assert {key for key in asyncio.run(read_rest()) if not key.startswith(own)} == {b"meanwhile"}


def test_password_over_tls_needs_no_option(tls_node):
    url = f"{tls_node.url}/default?ca={tls_node.files / 'ca.pem'}"

    async def write_document(key):
        async with connect(url, username="alice", password="wonderland") as bucket:
            await bucket.upsert(key, b'{"n":1}')

    asyncio.run(write_document("go-dcp before"))
    with follow_bucket_over_tls(tls_node, "default") as program:
        program.read_until(lambda lines: "go-dcp before" in collect_keys(lines, "mutation"))
        asyncio.run(write_document("go-dcp live"))
        program.read_until(lambda lines: "go-dcp live" in collect_keys(lines, "mutation"))
        assert program.terminate() == 0
