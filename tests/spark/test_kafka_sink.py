"""A Kafka sink without a broker: events, topics, invalid declarations, secrets."""

import json
import logging
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.connect.address import parse_address
from penstock.errors import Error, Unreachable, UsageError
from penstock.spark import KafkaSink, catch_up
from penstock.spark.dependents.kafka.document_events import EventOperation, list_events
from penstock.spark.dependents.kafka.envelope import EventEncoder
from penstock.spark.dependents.kafka.kafka_errors import ignore_lost_exception
from penstock.spark.dependents.kafka.sink_position import SinkPosition
from penstock.spark.dependents.kafka.topic_names import TopicNames
from penstock.spark.dependents.kinds.kafka_sink import KafkaKind
from penstock.spark.lake.changelog.changelog_delta import find_delta
from penstock.spark.lake.changelog.ordered_changes import read_ordered_changes
from tests.patience import PATIENCE
from tests.spark.lakes import append, row

NOWHERE = "127.0.0.1:9"
SECRET = "tenpence"
HLC = 1795823523052 * 10**6


@pytest.fixture
def password_file(tmp_path):
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    return str(file)


def declare(**keys):
    return KafkaKind(**{"name": "events", "brokers": (NOWHERE,), "topic": "beer", **keys})


def read_events(lake, start=None, *, with_before=False):
    delta = find_delta(lake, start)
    assert delta is not None
    parts = [read_ordered_changes(delta, part, with_known=with_before) for part in delta.ranges]
    return [event for part in parts for event in list_events(part, with_before=with_before)]


VALUES = [
    (b'{"a": 1.10, "b": [null]}', {"value": {"a": 1.10, "b": [None]}}),
    (b"12345678901234567890123", {"value": 12345678901234567890123}),
    (b"null", {"value": None}),
    (b"", {"value_base64": ""}),
    (b"NaN", {"value_base64": "TmFO"}),
    (b"\xff\x00", {"value_base64": "/wA="}),
    (b"[" * 100_000, {"value_base64": None}),
    (None, {"value": None}),
]


@pytest.mark.parametrize(("value", "wanted"), VALUES, ids=lambda each: str(each)[:30])
def test_values_are_json_or_base64(lake, value, wanted):
    append(lake, 0, [row(1, 1, b"k", value)])
    (event,) = read_events(lake)
    after = json.loads(EventEncoder("events", "beer").encode(event, 0))["after"]
    assert after.pop("key") == "k"
    found = {name: after[name] for name in after if name.startswith("value")}
    assert found.keys() == wanted.keys()
    assert wanted in (found, {"value_base64": None})


def test_envelope(lake):
    names: dict[str, Any] = {
        "collection_id": 8,
        "scope": "s",
        "collection": "c",
        "vbuuid": -1,
        "cas": HLC,
        "xattrs": {"x": b"[1]"},
    }
    append(lake, 0, [row(1, 7, b"\xff", b"1.0", rev_seqno=3, expiry=5, **names)])
    (event,) = read_events(lake)
    found = json.loads(
        EventEncoder("events", "beer").encode(event._replace(operation=EventOperation.UPDATE, is_snapshot=False), 9)
    )
    source = found.pop("source")
    assert found == {
        "before": None,
        "after": {"key_base64": "/w==", "value": 1.0, "flags": 0, "expiry": 5, "xattrs": {"x": [1]}},
        "op": "u",
        "ts_ms": 9,
        "transaction": None,
    }
    del source["version"]
    assert source == {
        "connector": "penstock",
        "name": "events",
        "ts_ms": HLC // 10**6,
        "snapshot": "false",
        "db": "beer",
        "bucket": "beer",
        "scope": "s",
        "collection": "c",
        "collection_id": 8,
        "vbucket": 1,
        "vbuuid": str(2**64 - 1),
        "seqno": 7,
        "history": 0,
        "rev_seqno": 3,
        "cas": str(HLC),
        "event": "mutation",
        "correction": None,
    }


def test_events_have_the_version_before(lake):
    append(lake, 0, [row(1, 1, b"a", b"1"), row(1, 2, b"gone", b"2"), row(1, 3, b"gone", event="deletion")])
    start = find_delta(lake, None)
    assert start is not None
    stored = [
        row(1, 4, b"a", b"4", rev_seqno=2),
        row(1, 5, b"a", event="expiration"),
        row(1, 6, b"gone", b"6", rev_seqno=3),
    ]
    append(lake, 1, stored)
    place = start.changelog_id, start.version

    def shorten(events):
        return [(event.operation, event.version.seqno, event.before and event.before.value) for event in events]

    assert shorten(read_events(lake, place)) == [("u", 4, None), ("d", 5, None), ("u", 6, None)]
    assert shorten(read_events(lake, place, with_before=True)) == [("u", 4, b"1"), ("d", 5, b"4"), ("c", 6, None)]
    assert shorten(read_events(lake)) == [("d", 5, None), ("r", 6, None)]
    assert {event.is_snapshot for event in read_events(lake)} == {True}


TOPICS = [
    ("beer", {"rollbacks": "beer.rollbacks", "positions": "beer.positions"}),
    ("a.{scope}.{collection}", {"rollbacks": "a.rollbacks", "positions": "a.positions"}),
    ("{scope}.{collection}", {"rollbacks": "events.rollbacks", "positions": "events.positions"}),
]


@pytest.mark.parametrize(("template", "wanted"), TOPICS, ids=str)
def test_topics(template, wanted):
    topics = TopicNames.make("events", template, unique_keys=False)
    assert {name: getattr(topics, name) for name in wanted} == wanted
    assert topics.find_topic("_default", "_default", 0) == template.format(scope="_default", collection="_default")


def test_topic_of_a_collection():
    topics = TopicNames.make("events", "{scope}.{collection}", unique_keys=False)
    assert topics.find_topic("brewing", "ales", 8) == "brewing.ales"
    assert topics.find_topic(None, None, 9) == "unknown.0x9"
    with pytest.raises(Error, match=r"collection a%b\.c cannot have the topic 'a%b\.c'"):
        topics.find_topic("a%b", "c", 10)
    with pytest.raises(Error, match=r"expected unique_keys = true, or a topic such as beer\.\{scope\}\.\{collection\}"):
        TopicNames.make("events", "beer", unique_keys=False).find_topic("brewing", "ales", 8)
    assert TopicNames.make("events", "beer", unique_keys=True).find_topic("brewing", "ales", 8) == "beer"


def test_source_decides_whether_keys_are_unique():
    one, all_scopes = (parse_address(f"couchbase://a/beer{more}") for more in ("?collections=brewing.ales", ""))
    declared = declare()
    assert (declared.bind_source(one).unique_keys, declared.bind_source(all_scopes).unique_keys) == (True, False)
    assert declared.bind_source(one).bucket == "beer"
    declare(topic="{collection}").check_source(one)
    with pytest.raises(UsageError, match=r"topic is '\{collection\}', expected \{scope\} too"):
        declare(topic="{collection}").check_source(all_scopes)


AMBIGUOUS = [
    "{scope}_{collection}",
    "t.{scope}-{collection}",
    "{scope}{collection}",
    "{scope}_{collection}.{scope}_{collection}",
]
UNAMBIGUOUS = [
    "{scope}.{collection}",
    "t.{scope}_.a_{collection}",
    "{collection}.{scope}",
    "{scope}_{collection}.{scope}",
]


@pytest.mark.parametrize("template", AMBIGUOUS)
def test_topic_that_two_collections_may_share_is_refused(template, lake):
    ways = ("", "?collections=a_b.c,a.b_c")
    for way in ways:
        with pytest.raises(UsageError, match="two collections may share, such as "):
            declare(topic=template).check_source(parse_address(f"couchbase://a/beer{way}"))
    with pytest.raises(UsageError, match="two collections may share"):
        KafkaSink.open(lake, "events", brokers=[NOWHERE], topic=template)
    declare(topic=template).check_source(parse_address("couchbase://a/beer?scope=a_b"))
    declare(topic=template, unique_keys=True).check_source(parse_address("couchbase://a/beer"))
    KafkaSink.open(lake, "events", brokers=[NOWHERE], topic=template, unique_keys=True).close()


NAMES = st.text("ab._-", min_size=1, max_size=3).map(lambda name: name.replace(".", "_"))


@pytest.mark.parametrize("template", UNAMBIGUOUS)
@given(names=st.lists(st.tuples(NAMES, NAMES), min_size=2, max_size=2, unique=True))
def test_topics_of_two_collections_differ(template, names):
    topics = TopicNames.make("events", template, unique_keys=False)
    topics.check_source(parse_address("couchbase://a/beer").options)
    assert len({topics.find_topic(scope, collection, 8) for scope, collection in names}) == 2


TAKEN = [
    ("u.{collection}", "a", "rollbacks", "u.rollbacks"),
    ("u.{collection}", "a", "positions", "u.positions"),
    ("{scope}.{collection}", "events", "positions", "events.positions"),
    ("{scope}.{collection}", "x%y", "c", "x%y.c"),
    ("{scope}.{collection}", "s" * 200, "c" * 200, "s" * 200),
]


@pytest.mark.parametrize(("template", "scope", "collection", "topic"), TAKEN)
def test_collection_without_a_topic_is_refused_before_a_run(template, scope, collection, topic):
    reason = f"collection {scope}.{collection} cannot have the topic '{topic}"
    with pytest.raises(Error, match=reason):
        TopicNames.make("events", template, unique_keys=False).find_topic(scope, collection, 8)
    with pytest.raises(UsageError, match=reason):
        declare(topic=template).check_source(parse_address(f"couchbase://a/beer?collections={scope}.{collection}"))


@pytest.fixture(scope="module")
def brokers():
    """Yield the address of librdkafka's own broker, which lives as long as its client."""
    client = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "ignored", "log_level": 0})
    yield tuple(f"{each.host}:{each.port}" for each in client.list_topics(timeout=PATIENCE).brokers.values())
    client.purge()


def consume(brokers, topic):
    """Return the keys of a topic's records."""
    config = {"bootstrap.servers": brokers[0], "group.id": "tests", "log_level": 0, "enable.partition.eof": True}
    consumer = Consumer(config)
    try:
        places = consumer.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        consumer.assign([TopicPartition(topic, place, 0) for place in places])
        keys, ended = [], 0
        while ended < len(places):
            message = consumer.poll(PATIENCE)
            assert message is not None
            if message.error() is None:
                keys.append(message.key())
            else:
                ended += 1
        return sorted(keys)
    finally:
        consumer.close()


def test_refused_record_is_named(lake, brokers):
    append(lake, 0, [row(1, 7, b"big\n", b"x" * 2_000_000)])
    sink = declare(brokers=brokers, delivery="at-least-once", topic="named").open(lake)
    with pytest.raises(
        Error, match=r"of key big\\n of collection _default\._default \(vbucket 1, seqno 7, 2,\d+,\d+ bytes\)"
    ) as caught:
        catch_up(sink, lake)
    for part in (f"Kafka at {brokers[0]} refused", "topic named", "message.max.bytes", "dead_letter_path"):
        assert part in str(caught.value)


def test_refused_records_become_dead_letters(lake, brokers, tmp_path):
    """Records of other documents follow, and a repeated delta has the same dead letters once."""
    names: dict[str, Any] = {"collection_id": 8, "scope": "brewing"}
    rows = [
        row(1, 1, b"before", b"1"),
        row(1, 2, b"big", b"x" * 2_000_000),
        row(1, 3, b"after", b"3"),
        row(2, 1, b"ale", b"1", collection="ales", **names),
        row(2, 2, b"odd", b"1", collection="a%b", **names),
        row(2, 3, b"taken", b"1", collection="rollbacks", **names),
    ]
    append(lake, 0, rows)
    directory = tmp_path / "letters"
    declared = declare(
        brokers=brokers, delivery="at-least-once", topic="let.{collection}", dead_letter_path=str(directory)
    )
    for _ in range(2):
        sink = declared.open(lake)
        catch_up(sink, lake)
        sink.close()
        letters = pq.read_table(directory).sort_by("key")
        assert letters["key"].to_pylist() == [b"big", b"odd", b"taken"]
        assert letters["collection"].to_pylist() == [None, "a%b", "rollbacks"]
        assert letters["error"].to_pylist() == ["MSG_SIZE_TOO_LARGE", *["INVALID_TOPIC_EXCEPTION"] * 2]
        assert letters["error_message"].to_pylist()[1].startswith("collection brewing.a%b cannot have the topic")
        assert [path.name for path in directory.iterdir() if path.suffix != ".parquet"] == []
        sink.path.unlink()  # as if killed after the dead letters were stored
    assert consume(brokers, "let._default") == [b"after", b"after", b"before", b"before"]
    assert consume(brokers, "let.ales") == [b"ale", b"ale"]
    assert declared.dead_letters == str(directory)


INVALID = [
    ({"brokers": ()}, "brokers is empty, expected addresses such as kafka-1:9092"),
    ({"brokers": ("kafka",)}, "brokers has 'kafka', expected an address"),
    ({"topic": "a b"}, r"topic is 'a b', expected letters"),
    ({"topic": "{bucket}"}, r"topic is '\{bucket\}', expected letters"),
    ({"topic": "{scope}"}, r"expected \{collection\} too"),
    ({"rollback_topic": "beer"}, "expected other names for rollbacks and positions"),
    ({"position_topic": "a/b"}, "position_topic is 'a/b'"),
    ({"timeout": 0}, "timeout is 0, expected 0.1 to 3600"),
    ({"name": "a/b"}, "the name of the sink is 'a/b'"),
    ({"ca_file": "/nowhere"}, "ca_file without tls"),
    ({"tls": True, "ca_file": "/nowhere"}, "ca_file is '/nowhere', which is no file"),
    ({"username": "u"}, "a login without sasl_mechanism"),
    ({"sasl_mechanism": "SCRAM-SHA-512", "username": "u"}, "expected username too, and one of password_file"),
    ({"sasl_mechanism": "PLAIN", "username": "u", "password_env": "NONE"}, "which sends the password unencrypted"),
    ({"sasl_mechanism": "SCRAM-SHA-256", "username": "u", "password_env": "NONE"}, "the environment has no NONE"),
    ({"properties": {"linger": 1}}, 'properties: No such configuration property: "linger"'),
    ({"properties": {"linger.ms": "soon"}}, "properties: Invalid value for configuration property"),
    ({"properties": {"acks": 1}}, "properties has 'acks', which the sink sets itself; use delivery"),
    ({"properties": {"sasl.password": SECRET}}, "properties has 'sasl.password', which the sink sets itself"),
    ({"properties": {"ssl.key.pem": SECRET}}, "a pipeline's file must not hold secrets"),
]


@pytest.mark.parametrize(("keys", "wanted"), INVALID, ids=str)
def test_invalid_declaration_is_refused(keys, wanted):
    with pytest.raises(UsageError, match=wanted) as caught:
        declare(**keys)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_brokers_that_do_not_answer(lake, password_file, caplog, delivery):
    """The position stays, and nothing shows the password."""
    caplog.set_level(logging.DEBUG)
    append(lake, 0, [row(1, 1, b"a", b"1")])
    login = {"sasl_mechanism": "SCRAM-SHA-512", "username": "u", "password_file": password_file}
    sink = declare(delivery=delivery, timeout=0.2, **login).open(lake)
    with pytest.raises(Unreachable, match=r"Kafka at 127\.0\.0\.1:9 did not answer within 0\.2 s: ") as caught:
        catch_up(sink, lake)
    assert sink.position() is None
    for text in (str(caught.value), repr(sink), repr(vars(sink)), repr(declare(**login)), caplog.text):
        assert SECRET not in text


def test_position_of_ranges():
    position = SinkPosition("id").advance(3, 7)
    assert (position.find_start(3), position.find_start(4)) == (("id", 7), None)
    assert SinkPosition.decode(position.encode(), "topic") == position
    for text in (b"{}", b"x", b'{"changelog": "id", "versions": [1]}'):
        with pytest.raises(Error, match="the topic topic has a record that is no position"):
            SinkPosition.decode(text, "topic")


def test_reset_removes_position_and_id(lake):
    sink = declare().open(lake)
    assert KafkaKind.list_files(lake, "events") == []
    sink.path.parent.mkdir(parents=True)
    for name in ("events.json", "events.id"):
        (sink.path.parent / name).touch()
    assert [path.name for path in KafkaKind.list_files(lake, "events")] == ["events.json", "events.id"]


def call_client(error):
    """Raise the error where the sink calls the client."""
    with ignore_lost_exception():
        raise error


def test_only_an_exception_that_the_client_lost_is_ignored():
    call_client(SystemError("<method 'flush'> returned NULL without setting an exception"))
    known = SystemError("<function> returned a result with an exception set")
    known.__cause__ = KeyError()
    with pytest.raises(SystemError, match="with an exception set"):
        call_client(known)
