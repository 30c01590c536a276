"""The options of `format("dcp")`, as text: their values, and the errors for invalid options."""

import asyncio
import json
from dataclasses import fields
from pathlib import Path

import pytest

from penstock.client.connect.address import Compression, MissingVbuckets, RecreatedBucket
from penstock.client.feeds.collection_selection import CollectionSelection
from penstock.client.login.credentials import Credentials
from penstock.errors import Unreachable, UsageError
from penstock.options import list_options
from penstock.spark.source.offsets import Offset, ProvenEnd, VbucketOffset, VbucketRange
from penstock.spark.source.partition_reader import ChangePartition
from penstock.spark.source.read_positions import VbucketPositions
from penstock.spark.source.source_options import SourceOptions
from penstock.spark.source.source_schema import make_read_schema, make_read_shape
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.client.peer import Script, in_loop
from tests.spark.buckets import numbered, read_batch

OFFSET = Offset((VbucketOffset(0, 5, 7, (ProvenEnd(7, 7),)), VbucketOffset()))
PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"urll": "x"}, "unknown option 'urll' of format dcp; known are url, bucket, username, password"),
        ({"maxChangesPerTrigger": "0"}, "option maxChangesPerTrigger is '0', expected a whole number above 0"),
        ({"maxChangesPerTrigger": "many"}, "option maxChangesPerTrigger is 'many', expected a whole number above 0"),
        ({"maxPartitions": "-1"}, "option maxPartitions is '-1', expected a whole number above 0"),
        ({"start": "now"}, "unknown option 'start' of format dcp"),
        ({"startingOffsets": "now"}, "option startingOffsets is 'now', expected earliest, latest or positions as JSON"),
        ({"protocol": "xdcr"}, "option protocol is 'xdcr', expected one of tap, upr-draft, upr, dcp"),
        ({"url": "127.0.0.1"}, "connection string '127.0.0.1' has no scheme, expected couchbase://host:port/bucket"),
        ({"url": "couchbase://h/b?x=1"}, "unknown option 'x' in the connection string"),
        ({"username": "ada"}, "a username without a password"),
        ({"password": "secret"}, "a password without a username"),
        ({"password": "p", "passwordFile": "f"}, "options password and passwordFile, expected one of them"),
        (
            {"credentialsFile": "f", "username": "ada"},
            "option credentialsFile has the whole login, expected it without username",
        ),
        ({"username": "ada", "passwordFile": "missing"}, "missing: No such file or directory"),
        ({"collections": "a,,b"}, "option collections is 'a,,b', expected names with commas between them"),
        ({"scope": "s", "collections": "t.c"}, "collection 't.c' is not in scope 's'"),
        ({"scope": "s", "protocol": "upr"}, "option protocol is 'upr', which does not support collections; dcp does"),
        ({"xattrs": "yes"}, "option xattrs is 'yes', expected true or false"),
        ({"url": ""}, "option url is empty"),
        ({"scope": ""}, "option scope is empty, expected a name"),
        ({"bucket": "a b"}, "bucket name 'a b', expected 1 to 100 of the characters"),
        ({"bucket": "x", "url": "couchbase://h/b"}, "option bucket is 'x', but the connection string names 'b'"),
        ({"vbuckets": "0-"}, "option vbuckets is '0-', expected numbers and ranges of them as 0-15,40"),
        ({"vbuckets": ""}, "option vbuckets is '', expected numbers and ranges of them as 0-15,40"),
        ({"vbuckets": "7-3"}, "option vbuckets has '7-3', expected 0 to 65535, the lower first"),
        ({"vbuckets": "65536"}, "option vbuckets has '65536', expected 0 to 65535, the lower first"),
        (
            {"maxBytesPerTrigger": "64mb"},
            "option maxBytesPerTrigger is '64mb', expected bytes as a whole number above 0",
        ),
        ({"maxBytesPerTrigger": "m"}, "option maxBytesPerTrigger is 'm', expected bytes as a whole number above 0"),
        ({"minPartitions": "3", "maxPartitions": "2"}, "option minPartitions is 3, above maxPartitions 2"),
        ({"columns": "key,vallue"}, "option columns has 'vallue', expected some of vbucket, vbuuid, seqno"),
        ({"columns": "key,seqno,key"}, "option columns has key twice, expected it once"),
        ({"keysOnly": "1"}, "option keysOnly is '1', expected true or false"),
        ({"keysOnly": "true", "valueFormat": "string"}, "options keysOnly and valueFormat, expected one of them"),
        ({"keysOnly": "true", "columns": "value"}, "columns none, expected at least one"),
        ({"valueFormat": "xml"}, "option valueFormat is 'xml', expected binary, string or json"),
        ({"valueFormat": "json"}, "no schema for values as json"),
        ({"valueSchema": "a INT"}, "a schema of JSON 'a INT' for values as binary"),
        ({"valueSchema": "infer"}, "option valueSchema is 'infer', but valueFormat is 'binary', expected json"),
        ({"valueFormat": "json", "valueSchema": "a INTT"}, "schema 'a INTT' has 'INTT' where BOOLEAN, TINYINT,"),
        ({"keyPattern": "("}, "key pattern '(' is not a regular expression of RE2"),
        ({"rollback": "ignore"}, "option rollback is 'ignore', expected row or fail"),
        ({"connectTimeout": "0"}, "option connectTimeout is '0', expected a number from 0.001 to 86400.0"),
        ({"startingOffsets": "[1]"}, "option startingOffsets is '[1]', expected earliest, latest or positions as JSON"),
        (
            {"startingOffsets": '{"7": {"seqno": 1}}'},
            'option startingOffsets is \'{"7": {"seqno": 1}}\' (a position has',
        ),
        ({"startingOffsets": '{"x": {"seqno": 1, "vbuuid": 1}}'}, "option startingOffsets is"),
        ({"endingOffsets": '{"version": 9}'}, "offset of version 9, expected 1"),
        ({"endingOffsets": "earliest"}, "option endingOffsets is 'earliest', expected latest or positions as JSON"),
        ({"endingOffsets": "[" * 100_000}, "option endingOffsets is '[[[["),
    ],
)
def test_invalid_option_is_refused_in_one_sentence(options, sentence):
    with pytest.raises(UsageError) as raised:
        SourceOptions.parse(options)
    assert str(raised.value).startswith(sentence)


def test_option_names_are_case_insensitive(monkeypatch):
    monkeypatch.setenv("PENSTOCK_URL", "couchbase://127.0.0.1/beer")
    assert SourceOptions.parse({"MAXCHANGESPERTRIGGER": "7", "MaxPartitions": "3"}) == SourceOptions(
        url="couchbase://127.0.0.1/beer", max_changes_per_trigger=7, max_partitions=3
    )


def test_login_is_read_from_options_environment_and_files(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_PASSWORD", "from the environment")
    assert SourceOptions.parse({}).credentials is None
    assert SourceOptions.parse({"username": "ada"}).credentials == Credentials("ada", "from the environment")
    (tmp_path / "password").write_text("from a file")
    given = {"username": "ada", "passwordFile": str(tmp_path / "password")}
    assert SourceOptions.parse(given).credentials == Credentials("ada", "from a file")
    (tmp_path / "login.json").write_text('{"username": "bob", "password": "secret"}')
    options = SourceOptions.parse({"credentialsFile": str(tmp_path / "login.json")})
    assert options.credentials == Credentials("bob", "secret")
    assert "secret" not in f"{options} {options.address!r} {ChangePartition(options.address, VbucketRange(()), True)!r}"


def test_options_override_the_selection_of_the_url():
    url = "couchbase://h/b?scope=s&collections=c&xattrs=true"
    options = SourceOptions.parse({"url": url})
    assert options.selection == CollectionSelection("s", ("c",))
    assert options.address.options.xattrs
    options = SourceOptions.parse({"url": url, "collections": "t.c,t.d", "xattrs": "false"})
    assert options.selection == CollectionSelection("", ("t.c", "t.d"))
    assert not options.address.options.xattrs
    assert SourceOptions.parse({}).selection == CollectionSelection()


def test_option_overrides_the_dialect_of_the_url():
    assert SourceOptions.parse({"url": "couchbase://h/b?protocol=upr"}).dialect is Dialect.UPR
    assert SourceOptions.parse({"url": "couchbase://h/b?protocol=upr", "protocol": "tap"}).dialect is Dialect.TAP


PARSED = {
    "url": ("couchbase://h/b", "couchbase://h/b"),
    "bucket": ("beer", "beer"),
    "scope": ("s", "s"),
    "collections": ("a,t.b", ("a", "t.b")),
    "vbuckets": ("4, 0-2,1-3", (0, 1, 2, 3, 4)),
    "startingOffsets": ("latest", "latest"),
    "resnapshotFile": ("requests.json", "requests.json"),
    "endingOffsets": ('{"1": {"vbuuid": "5", "seqno": 7}}', VbucketPositions({1: (5, 7)})),
    "maxChangesPerTrigger": ("12", 12),
    "maxBytesPerTrigger": ("64m", 64 << 20),
    "minPartitions": ("3", 3),
    "maxPartitions": ("30", 30),
    "keysOnly": ("true", True),
    "columns": ("seqno, key", ("seqno", "key")),
    "xattrs": ("true", True),
    "valueFormat": ("string", "string"),
    "valueSchema": ("a INT", "a INT"),
    "keyPattern": ("^a", "^a"),
    "keyPatternExclude": ("^a", "^a"),
    "protocol": ("upr", Dialect.UPR),
    "rollback": ("fail", "fail"),
    "failOnDataLoss": ("true", True),
    "filterPushdown": ("true", True),
    "connectTimeout": ("2.5", 2.5),
    "operationTimeout": ("2.5", 2.5),
    "retrySeconds": ("2.5", 2.5),
    "vbucketCount": ("64", 64),
    "missingVbuckets": ("skip", MissingVbuckets.SKIP),
    "recreatedBucket": ("fail", RecreatedBucket.FAIL),
    "mitigateRollback": ("true", True),
    "compression": ("force", Compression.FORCE),
}
LOGIN = {"username", "password", "passwordFile", "passwordCommand", "passwordFrom", "credentialsFile"}
OPTIONS = list_options(SourceOptions)


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_each_option_is_parsed_and_documented(option):
    name = option.external_name
    if name not in LOGIN:
        text, value = PARSED[name]
        more = {"valueFormat": "json"} if name == "valueSchema" else {}
        parsed = SourceOptions.parse({name: text, **more})
        assert getattr(parsed, option.name) == value
        assert getattr(parsed, option.name) != getattr(SourceOptions(), option.name) or name == "url"
    assert option.option_type.read(name, option.example) is not None
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}` |")]
    assert rows == [f"| `{name}` | {option.doc} | {option.default_text} | `{option.example}` |"]


def test_every_attribute_is_an_option():
    assert [field.name for field in fields(SourceOptions)] == [*OPTIONS]
    assert {option.external_name for option in OPTIONS.values()} == {*PARSED, *LOGIN}


def test_bucket_may_be_in_the_url_or_an_option(monkeypatch):
    url = "couchbase://h:1,g:2?protocol=upr"
    assert SourceOptions.parse({"url": url, "bucket": "beer"}).url == "couchbase://h:1,g:2/beer?protocol=upr"
    assert SourceOptions.parse({"url": "couchbase://h/beer", "bucket": "beer"}).address.bucket == "beer"
    monkeypatch.setenv("PENSTOCK_URL", "couchbase://127.0.0.1/default")
    assert str(SourceOptions.parse({"bucket": "50%"}).address) == "couchbase://127.0.0.1:11210/50%25"


def test_options_override_numbers_of_the_connection_string():
    url = "couchbase://h/b?connectTimeout=1&operationTimeout=2&retrySeconds=3"
    options = SourceOptions.parse({"url": url, "operationTimeout": "20"}).address.options
    assert (options.connect_timeout, options.operation_timeout, options.retry_seconds) == (1, 20, 3)
    options = SourceOptions.parse({"url": "couchbase://h/b?vbucketCount=4", "vbucketCount": "64"}).address.options
    assert options.vbucket_count == 64


def test_offsets_may_be_from_a_query_or_positions():
    offset = json.dumps(OFFSET.to_json())
    options = SourceOptions.parse({"startingOffsets": offset, "endingOffsets": '{"0": {"vbuuid": 5, "seqno": "7"}}'})
    assert options.starting_offsets == OFFSET
    assert isinstance(options.ending_offsets, VbucketPositions)
    assert options.ending_offsets.to_offset(2) == OFFSET
    with pytest.raises(UsageError, match="vbucket 0, expected one below 0"):
        options.ending_offsets.to_offset(0)


@pytest.mark.parametrize(
    ("given", "columns", "values", "xattrs"),
    [
        ({}, CHANGE_SCHEMA.names, True, False),
        ({"keysOnly": "true"}, [n for n in CHANGE_SCHEMA.names if n not in ("value", "xattrs")], False, False),
        ({"columns": "key,xattrs"}, ["key", "xattrs"], False, True),
        ({"columns": "key,xattrs", "xattrs": "false"}, ["key", "xattrs"], False, False),
        ({"columns": "value", "xattrs": "true"}, ["value"], True, False),
        ({"columns": "key,datatype"}, ["key", "datatype"], True, False),
        ({"xattrs": "true"}, CHANGE_SCHEMA.names, True, True),
    ],
)
def test_options_choose_columns_values_and_attributes(given, columns, values, xattrs):
    options = SourceOptions.parse(given)
    assert options.shape.schema.names == columns
    assert options.shape.needs_values is values
    assert options.address.options.xattrs is xattrs


def test_no_schema_is_inferred_without_the_column_value():
    options = SourceOptions.parse({"valueFormat": "json", "valueSchema": "infer", "columns": "key,seqno"})
    assert make_read_schema(options).names == ["key", "seqno"]
    assert make_read_shape(options, make_read_schema(options)).needs_values is False


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets", "vbuckets"])
def test_options_with_seqnos_are_refused_for_tap(name):
    options = SourceOptions.parse(
        {"protocol": "tap", name: "0" if name == "vbuckets" else '{"0": {"vbuuid":1,"seqno":1}}'}
    )
    with pytest.raises(UsageError, match=f"option {name}, but TAP has no seqnos"):
        options.check_batch()


def test_ending_offsets_are_refused_for_streams():
    options = SourceOptions.parse({"endingOffsets": '{"0": {"vbuuid": 1, "seqno": 1}}'})
    with pytest.raises(UsageError, match="option endingOffsets is for batch reads"):
        options.check_streaming()


def test_min_partitions_can_raise_max_partitions():
    assert SourceOptions.parse({"minPartitions": "100"}).max_partitions == 100


def test_bucket_of_the_option_is_read(documents):
    documents.store(numbered(0, 10))
    url = documents.url.removesuffix("/default")
    assert read_batch(url, bucket="default").num_rows == 10
    with pytest.raises(UsageError, match="no bucket 'beer'"):
        read_batch(url, bucket="beer")


def test_retry_seconds_limit_the_wait_for_a_missing_node():
    with pytest.raises(Unreachable, match=r"did not serve for .* s \(limit 0.1 s\)"):
        read_batch("couchbase://127.0.0.1:1/default", retrySeconds="0.1")


@in_loop
@pytest.mark.parametrize(
    ("name", "silent", "sentence"),
    [
        ("connectTimeout", Opcode.HELLO, "sent nothing within 0.05 s"),
        ("operationTimeout", Opcode.GET_FAILOVER_LOG, "no answer within 0.05 s"),
    ],
)
async def test_timeouts_limit_the_wait_for_an_answer(name, silent, sentence):
    async with Script(lambda peer, frame: b"" if frame.opcode == silent else None) as script:
        times = {"retrySeconds": "0.01", name: "0.05"}
        with pytest.raises(Unreachable, match=sentence):
            await asyncio.to_thread(read_batch, f"couchbase://127.0.0.1:{script.port}", bucket="default", **times)
