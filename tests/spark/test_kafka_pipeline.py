"""A pipeline with a Kafka sink and a real broker: a run, and another after deletions and a failover."""

import json
import logging

import pytest

from penstock.spark.pipeline.definition.definition import read_definition
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from tests.compat.kafka_broker import PASSWORD, USER, KafkaBroker, MergedEvents, read_values
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
tls = true
ca_file = "ca.pem"
sasl_mechanism = "SCRAM-SHA-512"
username = "{user}"
password_file = "password"
"""
WRONG = "Wasser-und-Salz"


@pytest.fixture
def broker(tmp_path):
    with KafkaBroker.running(tmp_path) as broker:
        yield broker


@pytest.mark.long
@pytest.mark.process
def test_consumers_have_the_documents_of_the_bucket(spark, node, documents, broker, tmp_path, caplog):
    """The sink logs in over TLS, once its password is correct. No file of the lake and no log has a password."""
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "pipeline.toml"
    file.write_text(PIPELINE.format(url=documents.url, broker=broker.login_address, user=USER))
    (tmp_path / "password").write_text(WRONG)
    documents.store({f"beer-{number}": b'{"n": %d}' % number for number in range(500)})
    (progress,) = run_pipeline(read_definition(str(file)), available_now=True, spark=spark)
    (error,) = [each.error for each in progress.dependents if each.error is not None]
    assert error.startswith(f"Kafka at {broker.login_address} refused the login of 'ada' with SCRAM-SHA-512: ")
    (tmp_path / "password").write_text(PASSWORD)
    for _ in range(2):
        (progress,) = run_pipeline(read_definition(str(file)), available_now=True, spark=spark)
        assert {each.error for each in progress.dependents} == {None}
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
    texts = [path.read_bytes() for path in (tmp_path / "lake").rglob("*") if path.is_file()]
    assert not [
        secret for secret in (PASSWORD, WRONG) for text in [caplog.text.encode(), *texts] if secret.encode() in text
    ]
