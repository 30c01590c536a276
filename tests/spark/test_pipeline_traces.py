"""Traces of a pipeline's run: a span for each micro-batch, and its children."""

import os
import subprocess
import sys

import pytest

from penstock.client.tracing.span_types import CLIENT_SPANS
from penstock.spark import Pipeline
from penstock.spark.pipeline.run.batch_spans import PIPELINE_SPANS
from penstock.spark.runtime.spark_session import hide_trace_launcher
from tests.patience import PATIENCE
from tests.spark.buckets import numbered
from tests.traced import check_declared, record_spans

FILE = """
lake = "lake"

[source.beer]
url = "{url}"

[[index]]
name = "by_n"
path = "n"
type = "long"
"""


@pytest.mark.spark
def test_tables_apply_rows_in_children_of_their_batches(spark, documents, tmp_path):
    path = tmp_path / "pipeline.toml"
    path.write_text(FILE.format(url=documents.url))
    pipeline = Pipeline.from_file(str(path))
    documents.store(numbered(0, 50))
    with record_spans() as found:
        pipeline.run(available_now=True, spark=spark)
        documents.store(numbered(50, 70))
        pipeline.run(available_now=True, spark=spark)
    batches = found.find("batch")
    attributes = [span.attributes or {} for span in batches]
    assert {span.name for span in batches} == {"batch beer"}
    assert [each["penstock.batch_id"] for each in attributes] == [*range(len(batches))]
    assert sum(int(str(each["messaging.batch.message_count"])) for each in attributes) == 70
    assert [each["penstock.to_seqnos"] for each in attributes[:-1]] == [
        each["penstock.from_seqnos"] for each in attributes[1:]
    ]
    by_id = {span.context.span_id: span for span in batches}
    for child in (*found.find("plan"), *found.find("write_changelog")):
        assert child.parent is not None
        batch = by_id[child.parent.span_id]
        times = [batch.start_time or 0, child.start_time or 0, child.end_time or 0, batch.end_time or 0]
        assert times == sorted(times)
        assert all(times)
    full = [span.context.span_id for span in batches if (span.attributes or {})["messaging.batch.message_count"]]
    assert len(full) < len(batches), "the end of a run stores its proofs without rows"
    applied = found.find("apply")
    assert {span.name for span in applied} == {"apply current", "apply by_n"}
    for name in ("apply current", "apply by_n"):
        spans = [span for span in applied if span.name == name]
        causes = [span.parent.span_id for span in spans if span.parent is not None]
        causes += [link.context.span_id for span in spans for link in span.links]
        assert sorted(causes) == sorted(full), "each batch with rows is the cause of one application"
    assert check_declared(found, (*PIPELINE_SPANS, *CLIENT_SPANS)) >= {"batch", "plan", "write_changelog", "apply"}


@pytest.mark.process
def test_launcher_does_not_trace_the_processes_of_spark(tmp_path, monkeypatch):
    """`opentelemetry-instrument` puts a directory like this one into PYTHONPATH, and leaves it there."""
    place = tmp_path / "opentelemetry" / "instrumentation" / "auto_instrumentation"
    place.mkdir(parents=True)
    (place / "sitecustomize.py").write_text("print('traced')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), str(tmp_path)]))

    def start_process():
        code = [sys.executable, "-c", "import sys; print(*sys.path, sep='\\n')"]
        return subprocess.run(code, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout.splitlines()

    assert "traced" in start_process()
    with hide_trace_launcher():
        inherited = start_process()
    assert "traced" not in inherited
    assert str(tmp_path) in inherited
    assert "traced" in start_process()
