"""Traces of consumers, with OpenTelemetry's SDK."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest
from opentelemetry import trace

import penstock
from penstock import Consumer, FilePositions, HandlerRetry
from penstock.client.tracing.span_types import CLIENT_SPANS
from penstock.node.auth.roles import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from tests.patience import PATIENCE
from tests.traced import check_declared, record_spans
from tests.waiting import wait_until

VBUCKETS = 4
PASSWORD = "a-password-that-no-span-has"


@pytest.fixture
def recorded():
    with record_spans() as found:
        yield found


def run(url, main):
    async def connected():
        async with asyncio.timeout(PATIENCE), penstock.connect(f"{url}?retrySeconds={PATIENCE:g}") as bucket:
            await bucket.upsert_many([(f"k{number:05}", b"1") for number in range(40)])
            return await main(bucket)

    return asyncio.run(connected())


async def nothing(bucket):
    """Leave the written documents."""


def test_handlers_run_within_the_span_of_their_delivery(cluster, tmp_path, recorded):
    threads = set()

    def handle(change):
        threads.add(threading.current_thread())
        with recorded.tracer.start_as_current_span("index") as span:
            span.set_attribute("key", change.key.decode())
        if change.key == b"k00003" and not any(e.name == "retry" for span in seen for e in span.events):
            seen.append(trace.get_current_span())
            raise ValueError("the text of a document")

    seen = []

    async def main(bucket):
        store = FilePositions(tmp_path / "positions.json")
        async with Consumer(bucket, store, stop="now") as consumer:
            await consumer.handle(handle, retry=HandlerRetry(attempts=2, first_seconds=0))
        async with Consumer(bucket, store, stop="now") as consumer:
            assert [change async for change in consumer.changes()] == []

    run(cluster.bucket.url, main)
    processed, works = recorded.find("process"), recorded.find("index")
    by_id = {span.context.span_id: span for span in processed}
    assert sum(span.attributes["messaging.batch.message_count"] for span in processed) == 40
    assert len(works) == 41
    assert {span.parent.span_id for span in works} == {*by_id}
    (retry,) = [event for span in processed for event in span.events]
    assert (retry.name, retry.attributes["error.type"], retry.attributes["penstock.attempt"]) == (
        "retry",
        "ValueError",
        1,
    )
    assert threading.current_thread() not in threads
    (bootstrap, *_), (opened, *_) = recorded.find("bootstrap"), recorded.find("open_streams")
    assert opened.attributes["penstock.vbuckets"] == VBUCKETS
    assert opened.attributes["messaging.client.id"].startswith("penstock:")
    children = [
        span for span in recorded.find("connect") if span.parent and span.parent.span_id == bootstrap.context.span_id
    ]
    assert [span.attributes["db.namespace"] for span in children] == ["beer"]
    assert sum(span.attributes["messaging.batch.message_count"] for span in recorded.find("commit")) == 40
    assert check_declared(recorded, CLIENT_SPANS) >= {"connect", "bootstrap", "open_streams", "process", "commit"}
    assert "the text of a document" not in "".join(span.to_json() for span in recorded.spans)


def test_rollback_and_reconnect_have_spans(cluster, tmp_path, recorded):
    proxy = cluster.nodes[0].proxy

    async def drain(changes):
        async for _ in changes:
            pass

    async def main(bucket):
        async with Consumer(bucket, FilePositions(tmp_path / "positions.json")) as consumer:
            changes = consumer.changes()
            for _ in range(40):
                change = await anext(changes)
            newest = consumer.positions[1].seqno
            await asyncio.to_thread(cluster.bucket.rollback, 1, 2)
            change = await anext(changes)
            assert (change.event, change.vbucket) == ("rollback", 1)
            reading = asyncio.create_task(drain(changes))
            await asyncio.to_thread(proxy.refuse)
            await wait_until(lambda: consumer.missing == (0, 1, 2, 3), reading)
            await asyncio.to_thread(proxy.heal)
            await wait_until(lambda: consumer.missing == (), reading)
            reading.cancel()
            await asyncio.wait([reading])
            return newest, change.seqno

    newest, seqno = run(cluster.bucket.url, main)
    (rollback,) = recorded.find("rollback")
    (event,) = rollback.events
    assert event.attributes == {"penstock.vbucket": 1, "penstock.from_seqno": newest, "penstock.to_seqno": seqno}
    assert recorded.find("reconnect")[-1].attributes["penstock.vbuckets"] == VBUCKETS
    assert check_declared(recorded, CLIENT_SPANS) >= {"connect", "reconnect", "rollback"}


def test_failed_connection_has_no_password_and_an_error(recorded, tmp_path):
    with change_users(tmp_path / "users.json") as accounts:
        accounts["reader"] = make_account(User.from_texts("reader", ["admin"]), "another", 4096)
    with penstock.Node.running(["beer"], users=tmp_path / "users.json") as node:

        async def main():
            async with penstock.connect(node.url("beer"), username="reader", password=PASSWORD):
                pass

        with pytest.raises(penstock.AuthenticationFailed):
            asyncio.run(main())
    (span,) = recorded.find("connect")
    assert span.attributes["error.type"] == "AuthenticationFailed"
    assert not span.status.is_ok
    assert PASSWORD not in span.to_json()


def test_loop_that_ends_early_leaves_no_current_span(cluster, tmp_path, recorded):
    async def main(bucket):
        async with Consumer(bucket, FilePositions(tmp_path / "positions.json")) as consumer:
            async for batch in consumer.batches():
                assert batch.num_rows
                break
            assert trace.get_current_span() is trace.INVALID_SPAN

    run(cluster.bucket.url, main)
    assert recorded.find("process")


LAUNCHER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
import sys

provider = TracerProvider()
exporter = ConsoleSpanExporter(out=sys.stderr, formatter=lambda span: span.name + "\\n")
provider.add_span_processor(BatchSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""


@pytest.mark.process
def test_command_is_traced_by_a_launcher(cluster, tmp_path):
    """`opentelemetry-instrument` puts a sitecustomize like this one onto the path of the command."""
    run(cluster.bucket.url, nothing)
    (tmp_path / "sitecustomize.py").write_text(LAUNCHER)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "penstock", "tail", "--url", cluster.bucket.url]
    ended = subprocess.run(
        [*command, "--from", "beginning", "--until", "now", "--json"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert len(ended.stdout.splitlines()) == 40
    assert {"connect beer", "bootstrap beer", "open_streams beer"} <= {*ended.stderr.splitlines()}
