"""Events of OpenLineage: their form, their datasets, and a receiver that is away."""

import json
import re
import socket
import uuid
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from penstock.errors import Error, UsageError
from penstock.spark.lake.tables.schemas import CHANGELOG_SCHEMA
from penstock.spark.pipeline.definition.definition import parse_definition
from penstock.spark.pipeline.lineage import event_sender
from penstock.spark.pipeline.lineage.event_sender import EventSender
from penstock.spark.pipeline.lineage.lineage_events import generate_run_id
from penstock.spark.pipeline.lineage.run_lineage import record_lineage
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from penstock.spark.pipeline.state.run_progress import DependentProgress, SourceProgress
from tests.patience import PATIENCE

SECRET = "Bearer tenpence"
PIPELINE: dict[str, Any] = {
    "lake": "s3://lakes/breweries",
    "source": {"beer": {"url": "couchbase://127.0.0.1:7/beer", "scope": "brewing", "collections": ["ales", "stouts"]}},
    "index": [{"name": "by_abv", "path": "abv", "type": "double"}],
    "sink": [
        {"kind": "bucket", "name": "copy", "url": "couchbase://127.0.0.1:7/copy"},
        {"kind": "kafka", "name": "events", "brokers": ["kafka-1:9092", "kafka-2:9092"], "topic": "beer.{collection}"},
        {"kind": "invalidate", "name": "cache", "url": "http://127.0.0.1:7/drop?key=tenpence"},
    ],
}
PROGRESS = SourceProgress(
    "beer",
    rows=11,
    bytes=500,
    dependents=(
        DependentProgress("brewing_x2e_ales", "table", rows=5),
        DependentProgress("current", "current", rows=7, applied_rows=9),
    ),
)
FACETS = {"outputStatistics": {"rowCount"}, "schema": {"fields"}, "jobType": {"processingType", "integration"}}
FACETS["errorMessage"] = {"message", "programmingLanguage"}
"""The required fields of each facet, beside those of all facets."""


def check_event(event: dict[str, Any]) -> None:
    """Check the fields that OpenLineage 2-0-2 requires of a RunEvent, of datasets and of facets."""
    assert event.keys() == {"eventType", "eventTime", "producer", "schemaURL", "run", "job", "inputs", "outputs"}
    assert event["eventType"] in ("START", "RUNNING", "COMPLETE", "ABORT", "FAIL")
    assert event["schemaURL"] == "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
    assert datetime.fromisoformat(event["eventTime"]).tzinfo is not None
    assert uuid.UUID(event["run"]["runId"]).version == 7
    assert all(event["job"][name] for name in ("namespace", "name"))
    facets = {**event["run"]["facets"], **event["job"]["facets"]}
    for dataset in (*event["inputs"], *event["outputs"]):
        assert dataset["namespace"]
        assert dataset["name"]
        facets |= dataset["facets"] | dataset.get("outputFacets", {})
    for name, facet in facets.items():
        assert facet.keys() >= FACETS[name] | {"_producer", "_schemaURL"}
        assert re.fullmatch(r"https://openlineage.io/spec/facets/\d-\d-\d/(\w+).json#/\$defs/\1", facet["_schemaURL"])
        assert re.match(r"[a-z]+:", facet["_producer"])


def define(tmp_path, lineage, **changed):
    return parse_definition(PIPELINE | changed | {"lineage": lineage}, str(tmp_path / "p.toml"))


def record(definition, error=None, reports=1):
    """Record a run that reports its progress, and then ends by an error."""
    lakes = [(source, definition.open_lake(definition.lake)) for source in definition.sources]
    with record_lineage(definition, lakes, None, is_batch=True) as report:
        assert report is not None
        for _ in range(reports):
            report(PROGRESS)
        if error is not None:
            raise error


def read_events(path):
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        check_event(event)
    return events


def test_run_has_a_start_and_an_end(tmp_path):
    definition = define(tmp_path, {"file": "lineage.jsonl", "every_seconds": 0, "namespace": "cellar"})
    record(definition)
    with pytest.raises(Error):
        record(definition, Error("the node is away"))
    with pytest.raises(KeyboardInterrupt):
        record(definition, KeyboardInterrupt(), reports=0)
    events = read_events(tmp_path / "lineage.jsonl")
    kinds = ["START", "RUNNING", "COMPLETE", "START", "RUNNING", "FAIL", "START", "ABORT"]
    assert [event["eventType"] for event in events] == kinds
    ids = [event["run"]["runId"] for event in events]
    assert [ids.index(each) for each in ids] == [0, 0, 0, 3, 3, 3, 6, 6]
    assert {(event["job"]["namespace"], event["job"]["name"]) for event in events} == {("cellar", "breweries.beer")}
    assert events[5]["run"]["facets"]["errorMessage"]["message"] == "the node is away"
    names = [(each["namespace"], each["name"]) for each in events[2]["inputs"] + events[2]["outputs"]]
    assert names == [
        ("couchbase://127.0.0.1:7", "beer.brewing.ales"),
        ("couchbase://127.0.0.1:7", "beer.brewing.stouts"),
        ("s3://lakes", "breweries/changelog"),
        ("s3://lakes", "breweries/current"),
        ("s3://lakes", "breweries/indexes/by_abv"),
        ("couchbase://127.0.0.1:7", "copy"),
        ("kafka://kafka-1:9092", "beer.{collection}"),
        ("http://127.0.0.1:7", "drop"),
        ("s3://lakes", "breweries/tables/brewing_x2e_ales"),
    ]
    changelog, current = events[2]["outputs"][:2]
    columns = [each["name"] for each in changelog["facets"]["schema"]["fields"]]
    assert columns == CHANGELOG_SCHEMA.names
    counts = [each["outputFacets"]["outputStatistics"] for each in (changelog, current)]
    assert [each["rowCount"] for each in counts] == [11, 7]
    assert counts[0]["size"] == 500
    assert "tenpence" not in json.dumps(events)


def test_events_about_progress_are_rare(tmp_path):
    record(define(tmp_path, {"file": "lineage.jsonl"}), reports=100)
    assert [event["eventType"] for event in read_events(tmp_path / "lineage.jsonl")] == ["START", "COMPLETE"]


def test_ids_of_runs_are_unique_and_in_order():
    ids = [generate_run_id() for _ in range(1000)]
    assert len({*ids}) == 1000
    assert {(uuid.UUID(each).version, uuid.UUID(each).variant) for each in ids} == {(7, uuid.RFC_4122)}
    assert [each[:13] for each in ids] == sorted(each[:13] for each in ids)


@contextmanager
def serving():
    """Yield the address of a server, and the requests that it gets."""
    requests: list[tuple[str, str | None, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/api/v1/lineage", requests
        server.shutdown()
        thread.join(PATIENCE)


def test_server_gets_the_events(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("LINEAGE_HEADERS", f"Authorization: {SECRET}")
    with serving() as (url, requests):
        definition = define(tmp_path, {"url": url, "headers_env": "LINEAGE_HEADERS"})
        record(definition)
    assert [(path, login) for path, login, _ in requests] == [("/api/v1/lineage", SECRET)] * 2
    for *_, event in requests:
        check_event(event)
    assert "tenpence" not in repr(definition) + caplog.text


def test_absent_server_neither_delays_nor_fails_the_run(tmp_path, monkeypatch, caplog):
    """The server accepts connections and never answers: events wait in a bounded queue, and the rest is dropped."""
    monkeypatch.setattr(event_sender, "END_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/?key=tenpence"
        record(define(tmp_path, {"url": url, "every_seconds": 0}), reports=2 * event_sender.MOST_EVENTS)
        dropped = 2 + 2 * event_sender.MOST_EVENTS
        place = url.partition("?")[0]
        assert [each.message for each in caplog.records] == [f"lineage: {dropped} events were not delivered to {place}"]


def test_failed_deliveries_are_counted(caplog):
    def refuse(event):
        if event["number"]:
            raise Error("the server refused an event")

    with EventSender(refuse, "a server") as sender:
        for number in range(4):
            sender.send({"number": number})
    assert sender.dropped == 3
    messages = ["lineage: the server refused an event", "lineage: 3 events were not delivered to a server"]
    assert [each.message for each in caplog.records] == messages


@pytest.mark.parametrize(
    ("lineage", "sentence"),
    [
        ({}, "[lineage] expected either url or file"),
        ({"url": "http://127.0.0.1:7/", "file": "x"}, "[lineage] expected either url or file"),
        ({"url": "ftp://a/"}, "[lineage] the url is 'ftp://a/'; expected one such as"),
        ({"url": "http://ada:tenpence@a/"}, "[lineage] the url has a login in it"),
        ({"file": "x", "headers_env": "X"}, "[lineage] headers are for url, and file is given"),
        ({"file": "x", "every_seconds": -1}, "[lineage] every_seconds is -1"),
        ({"file": "x", "name": "x"}, "[lineage] has an unknown key 'name'; did you mean namespace?"),
    ],
)
def test_invalid_settings_are_refused(tmp_path, lineage, sentence):
    with pytest.raises(UsageError) as caught:
        define(tmp_path, lineage)
    assert sentence in str(caught.value)
    assert "tenpence" not in str(caught.value)


@pytest.mark.spark
def test_run_of_a_pipeline_sends_events(spark, documents, tmp_path):
    documents.store({f"beer-{number}": b"{}" for number in range(10)})
    documents.remove(["beer-3"])
    source = {"default": {"url": documents.url}}
    wanted = {"source": source, "lake": "lake", "sink": [], "index": []}
    definition = define(tmp_path, {"file": "lineage.jsonl", "job": "cellar"}, **wanted)
    run_pipeline(definition, available_now=True, spark=spark)
    start, *_, end = read_events(tmp_path / "lineage.jsonl")
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert end["job"]["name"] == "cellar.default"
    assert end["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    assert [(each["namespace"], each["name"]) for each in end["outputs"]] == [
        ("file", str(tmp_path / "lake" / name)) for name in ("changelog", "current", "tables/default")
    ]
    assert [each["outputFacets"]["outputStatistics"]["rowCount"] for each in end["outputs"]] == [10, 9, 9]
