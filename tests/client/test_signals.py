"""Signals of consumers: reports, metrics and logs."""

import asyncio
import base64
import json
import logging
import re
import time
from dataclasses import replace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock import Consumer, FilePositions
from penstock.client.signals.consumer_report import ConsumerReport, VbucketLag
from penstock.client.signals.lag_samples import LagSamples
from penstock.client.signals.metrics_server import serve_collector
from penstock.client.signals.report_metrics import METRICS, ReportCollector
from penstock.client.signals.stream_counts import StreamCounts
from penstock.client.signals.web_listener import read_listener
from penstock.errors import UsageError
from tests.patience import PATIENCE
from tests.waiting import wait_until

VBUCKETS = 4


@pytest.fixture
def store(tmp_path):
    return FilePositions(tmp_path / "positions.json")


def run(url, main, options=f"retrySeconds={PATIENCE:g}"):
    async def connected():
        async with asyncio.timeout(PATIENCE), penstock.connect(f"{url}?{options}") as bucket:
            return await main(bucket)

    return asyncio.run(connected())


async def write(bucket, first, end):
    await bucket.upsert_many([(f"k{number:05}", b"1") for number in range(first, end)])


def test_report_has_the_lag_of_each_vbucket_and_the_counts(cluster, store):
    async def main(bucket):
        await write(bucket, 0, 100)
        highs = await bucket.high_seqnos()
        async with Consumer(bucket, store, stop="now") as consumer:
            first = await consumer.report()
            assert {vb: lag.seqnos for vb, lag in first.lags.items()} == highs
            assert (first.lag_seqnos, first.lagging_vbuckets, first.is_caught_up) == (100, VBUCKETS, False)
            second = await consumer.report()
            assert second.lag_seconds == pytest.approx(second.at - first.at, abs=1.0)
            assert {lag.seconds for lag in second.lags.values()} == {second.lag_seconds}
            assert len([change async for change in consumer.changes()]) == 100
            last = await consumer.report()
        assert (last.lag_seqnos, last.lag_seconds, last.buffered_bytes, last.missing) == (0, 0.0, 0, ())
        assert (last.is_caught_up, last.counts.changes, last.counts.errors) == (True, 100, 0)
        assert last.counts.received_bytes > 100 * len("k00000")
        assert last.changes_per_second > 0
        assert last.to_dict()["lagging"] == {}

    run(cluster.bucket.url, main)


async def drain(changes):
    async for _ in changes:
        pass


def test_report_counts_rollbacks_reconnects_and_errors(cluster, store):
    proxy = cluster.nodes[0].proxy

    async def main(bucket):
        await write(bucket, 0, 40)
        async with Consumer(bucket, store) as consumer:
            changes = consumer.changes()
            for _ in range(40):
                await anext(changes)
            await asyncio.to_thread(cluster.bucket.rollback, 1, 2)
            change = await anext(changes)
            assert (change.event, change.vbucket) == ("rollback", 1)
            reading = asyncio.create_task(drain(changes))
            assert consumer._stream is not None
            counts = consumer._stream.counts
            await asyncio.to_thread(proxy.refuse)
            await wait_until(lambda: consumer.missing == (0, 1, 2, 3), reading)
            assert (await consumer.report()).missing == (0, 1, 2, 3)
            await asyncio.to_thread(proxy.heal)
            await wait_until(lambda: counts.reconnects > 0, reading)
            report = await consumer.report()
            reading.cancel()
            await asyncio.wait([reading])
        assert report.counts.rollbacks == 1
        assert report.counts.errors > 0
        assert report.counts.last_error
        assert report.counts.last_error_at <= report.at

    run(cluster.bucket.url, main)


def test_report_keeps_the_last_seqnos_while_no_node_answers(cluster, store):
    proxy = cluster.nodes[0].proxy

    async def main(bucket):
        await write(bucket, 0, 40)
        async with Consumer(bucket, store) as consumer:
            first = await consumer.report()
            await asyncio.to_thread(proxy.black_hole)
            second = await consumer.report()
            assert (second.lag_seqnos, second.seqnos_at) == (40, first.seqnos_at)
            await asyncio.to_thread(proxy.heal)

    run(cluster.bucket.url, main, "operationTimeout=1")


def scrape(port):
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        return {family.name: family for family in text_string_to_metric_families(answer.read().decode())}


def test_consumer_serves_its_metrics_while_it_is_open(cluster, store):
    async def main(bucket):
        await write(bucket, 0, 40)
        async with Consumer(bucket, store, metrics_port=0) as consumer:
            port = consumer.metrics_port
            assert port
            await wait_until(lambda: bool(scrape(port)["penstock_stream_lag_seqnos"].samples))
            (sample,) = scrape(port)["penstock_stream_lag_seqnos"].samples
            assert (sample.value, sample.labels) == (40, {"bucket": "beer"})
            assert get(port, "/healthz") == (200, b"alive\n")
            with pytest.raises(UsageError, match=f"cannot serve metrics on port {port}"):
                await Consumer(bucket, store, metrics_port=port).open()
        with pytest.raises(OSError, match="refused"):
            scrape(port)

    run(cluster.bucket.url, main)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"metrics": "x"}, "--metrics is 'x', expected a port from 0 to 65535, or HOST:PORT"),
        ({"metrics": "65536"}, "--metrics is '65536'"),
        ({"metrics": "10.0.0.1:"}, "--metrics is '10.0.0.1:'"),
        ({"metrics": "0.0.0.0:0"}, "other machines reach metrics on 0.0.0.0: expected a file with a login"),
        ({"metrics": "[::]:0"}, "other machines reach metrics on ::: "),
        ({"metrics": "a.example:0"}, "other machines reach metrics on a.example"),
        ({"metrics_login": "/none"}, "--metrics-login without --metrics"),
        ({"metrics": "0", "metrics_login": "/none"}, "/none: No such file or directory"),
    ],
)
def test_invalid_place_of_metrics_is_refused(flags, problem):
    with pytest.raises(UsageError, match=re.escape(problem)):
        read_listener(flags.get("metrics"), flags.get("metrics_login"))


def get(port, path, login=None, method="GET"):
    """Return status and body of a response of a server of metrics."""
    headers = {} if login is None else {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
    try:
        with urlopen(
            Request(f"http://127.0.0.1:{port}{path}", None, headers, method=method), timeout=PATIENCE
        ) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


def test_metrics_with_a_login_are_for_this_login(tmp_path):
    file = tmp_path / "login.json"
    file.write_text('{"username": "prometheus", "password": "käse"}')
    listener = read_listener("localhost:0", str(file))
    assert listener is not None
    assert "käse" not in repr(listener)
    with serve_collector(ReportCollector(), listener) as port:
        for login in (None, "prometheus:", "prometheus:kase", "prometheus"):
            assert get(port, "/metrics", login)[0] == 401
        status, body = get(port, "/metrics", "prometheus:käse")
        assert (status, b"penstock_stream_lag_seqnos" in body) == (200, True)
        assert get(port, "/healthz") == (200, b"alive\n")
        assert get(port, "/healthz", method="POST")[0] == 405
        assert get(port, "/other", "prometheus:käse")[0] == 404
        status, body = get(port, "/readyz")
        assert (status, json.loads(body)["problems"]) == (503, ["no report yet"])


REPORT = ConsumerReport(bucket="b", at=time.time(), counts=StreamCounts(), seqnos_at=time.time() + 1e6)


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        (REPORT, None),
        (replace(REPORT, missing=(1, 2)), "2 vbuckets wait for their nodes"),
        (replace(REPORT, seqnos_at=0.0), "the bucket has not reported its seqnos yet"),
        (replace(REPORT, seqnos_at=1.0), r"the bucket reported its seqnos \d+ s ago, expected at most 60 s"),
    ],
)
def test_stream_is_ready_while_it_is_connected_and_knows_its_lag(report, problem):
    collector = ReportCollector()
    collector.newest = report
    problems = [*collector.find_problems()]
    assert len(problems) == (problem is not None)
    assert all(re.fullmatch(problem or "", found) for found in problems)


def test_consumer_reports_to_a_meter_while_it_is_open(cluster, store):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])

    def read():
        data = reader.get_metrics_data()
        found = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
        return {metric.name: [*metric.data.data_points] for metric in found}

    async def main(bucket):
        await write(bucket, 0, 40)
        async with Consumer(bucket, store, meter=provider.get_meter("shop")):
            await wait_until(lambda: bool(read().get("penstock.stream.lag_seqnos")))
            found = read()
            (point,) = found["penstock.stream.lag_seqnos"]
            assert (point.value, dict(point.attributes)) == (40, {"bucket": "beer"})
            assert found.keys() <= {f"penstock.stream.{metric.name}" for metric in METRICS}
        assert not any(read().values())

    run(cluster.bucket.url, main)
    provider.shutdown()


def test_metrics_keep_the_rules_of_prometheus_and_are_few():
    lags = {vbucket: VbucketLag(1, 2, 1.0) for vbucket in range(1024)}
    collector = ReportCollector()
    collector.newest = ConsumerReport(
        bucket="b", at=1.0, seqnos_at=1.0, lags=lags, counts=StreamCounts(last_error="x", last_error_at=1.0)
    )
    families = [*collector.collect()]
    assert sum(len(family.samples) for family in families) == len(METRICS) < 30
    for family, metric in zip(families, METRICS, strict=True):
        assert family.documentation.endswith(".")
        assert [sample.name for sample in family.samples] == [
            f"penstock_stream_{metric.name}{'_total' if metric.is_counter else ''}"
        ]
        assert metric.name.endswith("_bytes") == (metric.unit == "By")
        assert metric.name.endswith("_seconds") == (metric.unit == "s")


def test_logs_have_the_name_and_the_opaques_that_the_server_has(cluster, store, caplog):
    caplog.set_level(logging.DEBUG, "penstock.client.streams")

    async def main(bucket):
        await write(bucket, 0, 40)
        async with Consumer(bucket, store) as consumer:
            changes = consumer.changes()
            await anext(changes)
            name = (await consumer.report()).counts.connection_name
            return name, await bucket.stats("dcp")

    name, stats = run(cluster.bucket.url, main)
    records = [record for record in caplog.records if record.name == "penstock.client.streams"]
    assert {record.connection for record in records} == {name}
    assert any(name in stat for stat in stats)
    opaques = {record.vbucket: record.opaque for record in records if hasattr(record, "opaque")}
    assert opaques == {vb: int(stats[f"eq_dcpq:{name}:stream_{vb}_opaque"]) for vb in range(VBUCKETS)}


seqnos = st.integers(0, 6)


@given(st.lists(st.tuples(seqnos, seqnos), min_size=1, max_size=60))
def test_lag_counts_from_the_first_sample_that_the_position_has_not_reached(steps):
    samples, known = LagSamples(), []
    for now, (high, seqno) in enumerate(steps):
        samples.add(now, {0: high}, {0: seqno})
        known.append((now, high))
        found = samples.find_lag(now, 0, seqno, high)
        if seqno >= high:
            assert found == 0
        else:
            expected = next(now - at for at, sampled in known if min(sampled, high) > seqno)
            assert 0 <= found <= expected
