"""A pipeline with a Kafka sink and a real broker: a run, and another after deletions and a failover."""

import json

import pytest

from penstock.spark.pipeline.definition.definition import read_definition
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from tests.compat.kafka_broker import KafkaBroker, MergedEvents, read_values
from tests.spark.test_protocols import fail_over

PIPELINE = """
lake = "lake"
[source.beer]
url = "{url}"
[[sink]]
kind = "kafka"
name = "events"
brokers = ["{broker}"]
topic = "run.{{scope}}.{{collection}}"
"""


@pytest.fixture
def broker(tmp_path):
    with KafkaBroker.running(tmp_path) as broker:
        yield broker


@pytest.mark.long
@pytest.mark.process
def test_consumers_have_the_documents_of_the_bucket(spark, node, documents, broker, tmp_path):
    file = tmp_path / "pipeline.toml"
    file.write_text(PIPELINE.format(url=documents.url, broker=broker.address))
    documents.store({f"beer-{number}": b'{"n": %d}' % number for number in range(500)})
    for _ in range(2):
        (progress,) = run_pipeline(read_definition(str(file)), available_now=True, spark=spark)
        assert [each.error for each in progress.dependents] == [None, None]
        merged = MergedEvents.merge(broker.consume("run._default._default"))
        found = {key: document for (_, key), document in merged.documents.items()}
        assert found == read_values(documents.contents())
        assert len(merged.changes) == len(set(merged.changes))
        documents.remove([f"beer-{number}" for number in range(100)])
        documents.store({"beer-499": b'{"n": -1}'})
        fail_over(node, 3, 10)
    (event,) = [json.loads(record.value()) for record in broker.consume("run.rollbacks")]
    assert (event["event"], event["vbucket"]) == ("rollback", 3)
    assert {each["source"]["correction"] for each in merged.events} >= {None, "lost"}
    assert {each["source"]["bucket"] for each in merged.events} == {"default"}
    assert merged.tombstones >= 100
