"""JSON of hostile peers: either a protocol error in one sentence, or a value that is valid for its type."""

import ast
import copy
import json
from pathlib import Path

import pytest

import penstock
from penstock import connect
from penstock.cli.node.streams import _read_reports
from penstock.client.connect.address import MAX_PORT, parse_address
from penstock.client.connect.cluster_map import NO_NODE, parse_cluster_map
from penstock.client.connect.node_link import read_error_text
from penstock.client.feeds.collection_selection import parse_manifest
from penstock.errors import Error, RemoteProtocolError, ServiceMissing, Unreachable
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.collections import GetManifest
from penstock.wire.messages.kv import pack_features
from penstock.wire.values.peer_json import MOST_JSON_BYTES
from tests.client.peer import Script, in_loop, reply, stats_reply

HERE = ("here", 11210)
NODES = [
    {"services": {"kv": 1, "kvSSL": 101, "mgmt": 9}, "hostname": "a"},
    {"services": {"kv": 2, "kvSSL": 102}, "thisNode": True},
]
CONFIG = {
    "rev": 7,
    "name": "beer",
    "nodesExt": NODES,
    "vBucketServerMap": {"serverList": ["a:1", "[::1]:2"], "vBucketMap": [[0, 1], [-1, 0]]},
}
MANIFEST = {
    "uid": "1f",
    "scopes": [{"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0", "maxTTL": 3}]}],
}
REPORT = {
    "name": "n",
    "dialect": "dcp",
    "user": None,
    "peer": "h:1",
    "agent": "a",
    "items_sent": 1,
    "streams": [{"vbucket": 1, "filters": ["values"], "items_remaining": 2}],
}


def check_map(text, *, tls=False):
    found = parse_cluster_map(text, HERE, tls=tls)
    if found is not None:
        assert 0 < len(found.owners) <= 65536
        assert all(NO_NODE <= owner < len(found.endpoints) for owner in found.owners)
        assert all(
            0 < port <= MAX_PORT and host.isprintable() and len(host) < 256 for host, port in found.endpoints[1:]
        )


def check_tls_map(text):
    check_map(text, tls=True)


def check_manifest(text):
    found = parse_manifest(text)
    assert all(0 <= each < 1 << 32 for each in (*found.scopes.values(), *found.collections.values()))
    assert all(scope in found.scopes for scope, _ in found.collections)


READERS = {"map": (check_map, CONFIG), "TLS map": (check_tls_map, CONFIG), "manifest": (check_manifest, MANIFEST)}

DEEP = 100_000
TEXTS = {
    "deep arrays": b"[" * DEEP,
    "deep objects": b'{"a":' * DEEP,
    "deep arrays in an unknown field": b'{"x":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep objects in an unknown field": b'{"x":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "a number": b"9" * 10_000,
    "NaN": b"NaN",
    "not UTF-8": b"\xff\xfe{}",
    "spaces": b" " * (20 << 20),
    "nothing": b" ",
    "half": b'{"vBucketServerMap": {"serverList"',
    "more behind it": b"{} {}",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a text": b'"text"',
    "null": b"null",
    "long": b'{"x":"' + b"x" * MOST_JSON_BYTES + b'"}',
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", READERS)
def test_text_without_the_expected_json_is_a_protocol_error(name, text):
    with pytest.raises(RemoteProtocolError) as caught:
        READERS[name][0](TEXTS[text])
    assert len(str(caught.value)) < 200


def list_paths(value, path=()):
    """Yield the path of each value in JSON, that of the whole document first."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from list_paths(inner, (*path, key))


def replace_value(document, path, value):
    if not path:
        return value
    document = copy.deepcopy(document)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return document


def find_error(check, text):
    try:
        check(text)
    except (RemoteProtocolError, ServiceMissing) as error:
        return str(error)
    return ""


WRONG: list[object] = [
    *(None, True, False, -1, -2, 0, 65536, 2**31, 2**63, 2**64, 10**400, 1.5, 1e300),
    *("", "text", "\0", "a" * 300, "a\n:1", "a:0", "a:65536", "a:99999", "a..b:1", "[:::]:1", "-1", "x" * 100_000),
    *([], [[]], [None], ["a:1"] * 2000, {}, {"a": {}}, [[0]] * 70_000, [{}]),
]
RAW = [b"NaN", b"-Infinity", b"1e999", b'"\\ud800"', b'"\xff"', b"[" * DEEP, b'{"a":' * DEEP, b"9" * 10_000]
"""JSON texts that json.dumps cannot write."""

CASES = [(name, path) for name, (_, good) in READERS.items() for path in list_paths(good)]


@pytest.mark.parametrize(("name", "path"), CASES)
def test_any_value_at_any_key_is_parsed_or_refused(name, path):
    check, good = READERS[name]
    texts = [json.dumps(replace_value(good, path, wrong)).encode() for wrong in WRONG]
    mark = b'"<here>"'
    texts += [json.dumps(replace_value(good, path, "<here>")).encode().replace(mark, raw) for raw in RAW]
    for text in texts:
        message = find_error(check, text)
        assert "\n" not in message
        assert len(message) < 300


@pytest.mark.parametrize(
    ("server_map", "found"),
    [
        ({"serverList": ["a:1", "b:2"], "vBucketMap": [[0]] * 1_000_000}, "limit 4194304"),
        ({"serverList": ["a:1", "b:2"], "vBucketMap": [[0]] * 70_000}, "70000 vbuckets, expected 1 to 65536"),
        ({"serverList": ["a:1"] * 100_000, "vBucketMap": [[0]]}, "100000 nodes, expected 1 to 1024"),
        ({"serverList": ["a:1", "b:70000"], "vBucketMap": [[0]]}, "the server 'b:70000', expected host:port"),
        ({"serverList": ["a:1", "b c:7"], "vBucketMap": [[0]]}, "the server 'b c:7', expected host:port"),
        ({"serverList": ["a:1", "b:7"], "vBucketMap": [[2**64]]}, "Expected `int` <= 2147483647"),
        ({"serverList": ["a:1", "b:7"], "vBucketMap": [[-7]]}, "a vbucket on node -7 of 2"),
    ],
)
def test_map_beyond_its_bounds_is_refused(server_map, found):
    with pytest.raises(RemoteProtocolError, match=found):
        parse_cluster_map(json.dumps({"vBucketServerMap": server_map}).encode(), HERE)


def test_later_of_two_equal_keys_counts():
    text = json.dumps(CONFIG).replace('"rev": 7', '"name": "wine"').encode()
    assert text.count(b'"name"') == 2
    found = parse_cluster_map(text, HERE)
    assert found is not None
    assert found.bucket == "beer"


REFUSALS = [
    (b'{"error":{"context":"no such thing","ref":"7"}}', "no such thing"),
    (b'{"error":{"context":"bell \\u0007 and line\\n"}}', r"bell \x07 and line\n"),
    (b"plain \x1b[31m text", r"plain \x1b[31m text"),
    (b'{"error":{"context":"\\ud800"}}', '{"error":{"context":"\\ud800"}}'),
    (b'{"error":' * 40, '{"error":' * 40),
    (b'{"error":[]}', '{"error":[]}'),
    (b'{"error":{"context":NaN}}', '{"error":{"context":NaN}}'),
    (b"[" * 400, "[" * 400),
    (b"[" * 401, ""),
    (b"\xff", "\ufffd"),
]


@pytest.mark.parametrize(("value", "text"), REFUSALS)
def test_text_of_a_refusal_is_read(value, text):
    assert read_error_text(Frame(Magic.RESPONSE, Opcode.GET, Status.EINVAL, value=value)) == text


def test_the_body_of_not_my_vbucket_is_not_read():
    assert read_error_text(Frame(Magic.RESPONSE, Opcode.GET, Status.NOT_MY_VBUCKET, value=b"[" * 200)) == ""


# Over a socket

HOSTILE = [b"[" * DEEP, b'{"a":' * DEEP, b" " * (20 << 20), b"NaN", b"9" * 10_000]
ANSWERS = {
    "map": (Opcode.GET_CLUSTER_CONFIG, lambda frame, text: reply(frame, value=text), "cluster map of"),
    "manifest": (GetManifest.opcode, lambda frame, text: reply(frame, value=text), "manifest of"),
}


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:5].decode())
@pytest.mark.parametrize("name", ANSWERS)
@in_loop
async def test_hostile_json_ends_a_stream_with_one_error(name, text):
    opcode, make, found = ANSWERS[name]

    def answer(peer, frame):
        if frame.opcode == Opcode.HELLO:
            return reply(frame, value=pack_features([Feature.SELECT_BUCKET, Feature.COLLECTIONS]))
        return make(frame, text) if frame.opcode == opcode else None

    async with Script(answer) as script:
        with pytest.raises(RemoteProtocolError, match=found):
            async with connect(script.url()) as bucket:
                await anext(bucket.changes())


@in_loop
async def test_refusals_with_hostile_bodies_are_reported():
    bodies = iter([b"[" * 400, b'{"error":' * 44, b"[" * DEEP])

    def answer(peer, frame):
        return reply(frame, Status.EINVAL, value=next(bodies)) if frame.opcode == Opcode.GET else None

    async with Script(answer) as script, connect(script.url()) as bucket:
        for _ in range(3):
            with pytest.raises(Error, match="GET b'k': EINVAL"):
                await bucket.get("k")


@in_loop
async def test_not_my_vbucket_with_a_hostile_map_is_retried():
    def answer(peer, frame):
        return reply(frame, Status.NOT_MY_VBUCKET, value=b"[" * DEEP) if frame.opcode == Opcode.GET else None

    async with Script(answer) as script, connect(script.url(retrySeconds=0.2)) as bucket:
        with pytest.raises(Unreachable, match="NOT_MY_VBUCKET"):
            await bucket.get("k")


@pytest.mark.parametrize("text", ["{", "[]", "[" * 3000, '{"a":' * 3000, "NaN", json.dumps({**REPORT, "streams": 7})])
@in_loop
async def test_invalid_reports_of_streams_are_an_error(text):
    def answer(peer, frame):
        return stats_reply(frame, {"stream": text}) if frame.key == b"streams" else None

    async with Script(answer) as script:
        with pytest.raises(Error, match="does not list its streams: expected a Penstock node"):
            await _read_reports(parse_address(script.url()))


# Readers of JSON

LOCAL = {
    "client/cluster/map_publisher.py": "no JSON: the map of a node",
    "client/cluster/orchestrator.py": "no JSON: the map of a node",
    "client/login/credentials.py": "a file",
    "client/feeds/stream_requests.py": "the own request",
    "client/login/secret_sources.py": "no JSON: the function of an installed provider",
    "spark/source/read_positions.py": "an option",
    "wire/values/json_value.py": "documents, which are read by one rule wherever they come from",
}
"""Modules that read other JSON than that of peers -> source of the JSON."""


def test_json_of_peers_is_read_in_one_place():
    root = Path(penstock.__file__).parent
    found = set()
    for folder in ("client", "wire", "spark/source"):
        for path in sorted((root / folder).glob("**/*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                called = node.func if isinstance(node, ast.Call) else None
                if isinstance(called, ast.Attribute) and called.attr in ("loads", "load", "raw_decode"):
                    found.add(str(path.relative_to(root)))
    assert found == LOCAL.keys()
