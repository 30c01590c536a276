"""Cache invalidation: messages are complete, are delivered at least once, and have no values or secrets."""

import base64
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import Error, Unreachable, UsageError
from penstock.spark import Lake
from penstock.spark.dependents.dependent import Dependent, catch_up
from penstock.spark.dependents.kinds.invalidation import Invalidation, InvalidationKind
from penstock.spark.lake.changelog.changelog_delta import find_delta
from tests.examples import scaled
from tests.patience import PATIENCE
from tests.ports import free_ports
from tests.spark.lakes import ROOT, append, model, rollback, row
from tests.spark.test_current import histories

NOWHERE = "http://127.0.0.1:9/"
SECRET = "Bearer tenpence"


class Cache:
    """A cache that receives messages; each message removes documents, which are stored by identity."""

    def __init__(self):
        self.documents = {}

    def apply(self, message):
        keys = {key.encode() for key in message.get("keys", [])}
        keys |= {base64.b64decode(key) for key in message.get("keys_base64", [])}

        def is_removed(vbucket, collection, key):
            if not message.get("everything"):
                return collection == message["collection_id"] and key in keys
            if "vbuckets" in message:
                return vbucket in message["vbuckets"]
            return message.get("collection_id", collection) == collection

        self.documents = {identity: found for identity, found in self.documents.items() if not is_removed(*identity)}


def read_delta(lake, known):
    delta = find_delta(lake, known)
    assert delta is not None
    return delta


@settings(max_examples=scaled(30))
@given(histories(), st.data())
def test_cache_never_has_outdated_documents(rows, data):
    """After each step the cache is filled with all documents of that time."""
    ends = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=6)), 0, len(rows)})
    with TemporaryDirectory() as directory:
        lake, cache, known = Lake(directory), Cache(), None
        invalidation = Invalidation(
            lake, "cache", NOWHERE, batch_size=data.draw(st.integers(1, 3)), knows_vbuckets=data.draw(st.booleans())
        )
        for batch, (start, end) in enumerate(pairwise(ends)):
            append(lake, batch, rows[start:end])
            delta = read_delta(lake, known)
            known = (delta.changelog_id, delta.version)
            for message in invalidation.build_messages(delta):
                assert len(message.get("keys", [])) + len(message.get("keys_base64", [])) <= 3
                cache.apply(json.loads(json.dumps(message)))
            wanted = model(rows[:end])
            assert cache.documents.items() <= wanted.items()
            cache.documents = dict(wanted)


def since(lake, version):
    return read_delta(lake, (changelog_id(lake), version))


def in_beer(seqno, key, vbucket=1, **more):
    return row(vbucket, seqno, key, b"{}", collection_id=8, scope="taste", collection="beer", **more)


BEER = {"collection_id": 8, "scope": "taste", "collection": "beer"}
DEFAULT = {"collection_id": 0, "scope": None, "collection": None}


@pytest.fixture
def invalidation_to_nowhere(lake):
    append(lake, 0, [in_beer(n, b"beer %d" % n) for n in range(1, 4)] + [row(40, 1, b"a", b"{}")])
    return Invalidation(lake, "cache", NOWHERE, batch_size=2)


def test_keys_by_collection_in_batches(lake, invalidation_to_nowhere):
    append(lake, 1, [in_beer(5, b"x"), in_beer(6, b"\xff"), in_beer(7, b"z", event="deletion"), row(1, 8, b"y")])
    assert list(invalidation_to_nowhere.build_messages(since(lake, 0))) == [
        {**BEER, "keys": ["x"], "keys_base64": ["/w=="]},
        {**DEFAULT, "keys": ["y"], "keys_base64": []},
        {**BEER, "keys": ["z"], "keys_base64": []},
    ]


def test_rollback_sends_keys_of_lost_documents(lake, invalidation_to_nowhere):
    append(lake, 1, [rollback(1, 2, 1)])
    keys = [key for message in invalidation_to_nowhere.build_messages(since(lake, 0)) for key in message["keys"]]
    assert sorted(keys) == ["beer 1", "beer 2", "beer 3"]


def test_rollback_sends_vbuckets_to_servers_that_know_them(lake):
    append(lake, 0, [row(1, n, b"%d" % n) for n in range(1, 50)])
    append(lake, 1, [rollback(1, 20, 1), row(2, 1, b"other", history=0)])
    invalidation = Invalidation(lake, "cache", NOWHERE, knows_vbuckets=True)
    assert list(invalidation.build_messages(since(lake, 0))) == [
        {"everything": True, "vbuckets": [1], "of_vbuckets": 64},
        {**DEFAULT, "keys": ["other"], "keys_base64": []},
    ]


def test_ended_collection_is_sent_once(lake, invalidation_to_nowhere):
    append(lake, 1, [in_beer(10 + n, None, vbucket, event="end_collection") for n, vbucket in enumerate([1, 20, 63])])
    messages = list(invalidation_to_nowhere.build_messages(since(lake, 0)))
    assert [(message["everything"], message["collection_id"]) for message in messages] == [(True, 8)]


def test_first_delta_and_long_lists_are_sent_as_everything(lake, invalidation_to_nowhere):
    assert list(invalidation_to_nowhere.build_messages(read_delta(lake, None))) == [{"everything": True}]
    append(lake, 1, [row(1, 10 + n, b"%d" % n) for n in range(6)])
    assert len(list(invalidation_to_nowhere.build_messages(since(lake, 0)))) == 3
    few_keys = Invalidation(lake, "cache", NOWHERE, most_keys=5)
    assert list(few_keys.build_messages(since(lake, 0))) == [{"everything": True}]


def without_values(path):
    """Overwrite all values and extended attributes in a Parquet file with zeros."""
    footer, text = pq.read_metadata(path), bytearray(path.read_bytes())
    for group in (footer.row_group(number) for number in range(footer.num_row_groups)):
        for column in (group.column(number) for number in range(group.num_columns)):
            if column.path_in_schema.startswith(("value", "xattrs")):
                start = column.dictionary_page_offset or column.data_page_offset
                text[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(text)


def test_values_are_not_read(lake, invalidation_to_nowhere):
    rows = [row(1, 10 + n, b"%d" % n, b"value %d" % n) for n in range(6)]
    append(lake, 1, [*rows, rollback(1, 12, 1), in_beer(20, None, 2, event="end_collection")])
    wanted = list(invalidation_to_nowhere.build_messages(since(lake, 0)))
    for path in lake.changelog_table.path.rglob("vbucket_range=*/*.parquet"):
        without_values(path)
    assert list(invalidation_to_nowhere.build_messages(since(lake, 0))) == wanted
    with pytest.raises(OSError, match=r"Corrupt|corrupt|deserialize|Invalid|decompress"):
        since(lake, 0).read_range(0)


class Server(ThreadingHTTPServer):
    """An HTTP server that answers requests by a script, and with 204 after the script's end.

    Attributes:
        script: the next answers: a status, (status, body, headers), "hang", "cut", or a function that returns one.
        requests: (headers, message) of each request.
        came: notified after each request.
        released: set at the end of the test; ends answers that hang.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.script: deque[Any] = deque()
        self.requests = []
        self.came = threading.Condition()
        self.released = threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/drop?by=keys"

    @property
    def messages(self):
        with self.came:
            return [message for _, message in self.requests]


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"]))
        server = self.server
        with server.came:
            server.requests.append((dict(self.headers), json.loads(text)))
            answer = server.script.popleft() if server.script else 204
            server.came.notify_all()
        if callable(answer):
            answer = answer()
        if answer == "hang":
            server.released.wait(PATIENCE)
            self.close_connection = True
            return
        if answer == "cut":
            self.close_connection = True
            return
        status, body, headers = answer if isinstance(answer, tuple) else (answer, b"", {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def serving():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join(PATIENCE)


@pytest.fixture
def server():
    with serving() as server:
        yield server


@pytest.fixture
def invalidation(lake, server):
    """Return an invalidation that has sent version 0; the server's record of messages is empty again."""
    append(lake, 0, [row(1, 1, b"a", b"{}")])
    made = Invalidation(lake, "cache", server.url, batch_size=2, backoff=0.001, timeout=20)
    assert catch_up(made, lake) == 0
    assert [message.pop("changelog") for message in server.messages] == [changelog_id(lake)]
    assert server.messages == [{"name": "cache", "version": 0, "everything": True}]
    server.requests.clear()
    append(lake, 1, [row(1, 10 + n, b"%d" % n, b"{}") for n in range(5)])
    yield made
    made.close()


def changelog_id(lake):
    return str(lake.changelog_table.open().metadata().id)


def keys_of(messages):
    return [key for message in messages for key in message["keys"]]


def test_deltas_are_posted_over_one_connection_and_the_position_is_stored(lake, server, invalidation):
    follower: Dependent = invalidation
    assert catch_up(follower, lake) == 1
    assert keys_of(server.messages) == ["0", "1", "2", "3", "4"]
    assert follower.position() == (changelog_id(lake), 1)
    assert catch_up(follower, lake) == 1
    assert len(server.messages) == 3
    again = Invalidation(lake, "cache", server.url)
    assert again.position() == (changelog_id(lake), 1)


FAILURES = [500, 503, 429, (429, b"", {"Retry-After": "0"}), (503, b"", {"Retry-After": "Sun, 22 Nov 2026"}), "cut"]


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_failed_request_is_retried(lake, server, invalidation, failure):
    server.script.extend([204, failure, failure, 200])
    assert catch_up(invalidation, lake) == 1
    assert keys_of(server.messages) == ["0", "1", *["2", "3"] * 3, "4"]


def test_unreachable_server_keeps_the_position(lake, server, invalidation):
    server.script.extend([204, 503, 503, 503, (503, b"tired " * 100, {})])
    before = invalidation.position()
    with pytest.raises(Unreachable, match="accepted no batch in 4 attempts; the last: status 503: 'tired") as caught:
        catch_up(invalidation, lake)
    assert "by=keys" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert invalidation.position() == before
    append(lake, 2, [row(1, 20, b"later", b"{}")])
    assert catch_up(invalidation, lake) == 2
    assert sorted(set(keys_of(server.messages))) == ["0", "1", "2", "3", "4", "later"]


def test_refused_request_is_not_retried(lake, server, invalidation):
    server.script.append((400, b"no such cache\n" * 100, {}))
    before = invalidation.position()
    with pytest.raises(Error, match=r"/drop refused a batch with status 400: 'no such cache"):
        catch_up(invalidation, lake)
    assert len(server.messages) == 1
    assert invalidation.position() == before


def test_refused_request_names_its_keys(lake, server, invalidation):
    server.script.append(413)
    with pytest.raises(Error, match=r"413: ''; it has the key 0 and 1 more of collection _default\._default$"):
        catch_up(invalidation, lake)


def refuse_odd_keys(server):
    """Refuse requests with more than 3 keys, and those with the key 1 or 3."""

    def answer():
        keys = server.requests[-1][1].get("keys", [])
        return 413 if len(keys) > 3 else 422 if {"1", "3"} & set(keys) else 204

    server.script.extend([answer] * 100)


def test_refused_keys_become_dead_letters(lake, server, invalidation, tmp_path):
    """The other keys are accepted. A repeated delta has the same dead letters once."""
    letters = tmp_path / "letters"
    declared = InvalidationKind(name="cache", url=server.url, batch_size=5, dead_letter_path=str(letters))
    before = invalidation.path.read_text()
    for _ in range(2):
        server.requests.clear()
        server.script.clear()
        refuse_odd_keys(server)
        sink = declared.open(lake)
        catch_up(sink, lake)
        sink.close()
        accepted = [message["keys"] for message in server.messages if not {"1", "3"} & set(message["keys"])]
        assert sorted(key for keys in accepted if len(keys) <= 3 for key in keys) == ["0", "2", "4"]
        found = pq.read_table(letters).sort_by("key")
        assert found["key"].to_pylist() == [b"1", b"3"]
        assert found["error_status"].to_pylist() == [422, 422]
        assert found["error"].to_pylist() == [HTTPStatus(422).phrase] * 2
        sink.path.write_text(before)  # as if killed before the position was stored
    assert declared.dead_letters == str(letters)


@pytest.mark.parametrize("status", [307, 401, 403, 404])
def test_refusal_of_all_requests_makes_no_dead_letters(lake, server, invalidation, tmp_path, status):
    server.script.append(status)
    sink = Invalidation(lake, "cache", server.url, dead_letter_path=str(tmp_path / "letters"))
    with pytest.raises(Error, match=f"refused a batch with status {status}"):
        catch_up(sink, lake)
    assert not [*tmp_path.glob("letters/**/*.parquet")]


def test_response_to_an_accepted_request_may_have_any_length(lake, server, invalidation):
    server.script.extend([(200, b"thanks", {}), (200, b"x" * (1 << 20), {})])
    assert catch_up(invalidation, lake) == 1
    assert keys_of(server.messages) == ["0", "1", "2", "3", "4"]


def test_a_redirection_is_not_followed(lake, server, invalidation):
    server.script.append((307, b"", {"Location": NOWHERE}))
    with pytest.raises(Error, match="refused a batch with status 307"):
        catch_up(invalidation, lake)


def test_silent_server_ends_at_the_timeout(lake, server, invalidation):
    server.script.extend(["hang", "hang"])
    hasty = Invalidation(lake, "cache", server.url, timeout=0.1, retries=1, backoff=0)
    with pytest.raises(Unreachable, match="2 attempts; the last: Read timed out"):
        catch_up(hasty, lake)
    hasty.close()
    assert catch_up(invalidation, lake) == 1


def test_returning_server_gets_all_changes(lake, tmp_path):
    append(lake, 0, [row(1, 1, b"a", b"{}")])
    (port,) = free_ports(1)
    away = Invalidation(lake, "cache", f"http://127.0.0.1:{port}/", retries=1, backoff=0)
    with pytest.raises(Unreachable, match=r"2 attempts; the last: .*refused"):
        catch_up(away, lake)
    assert away.position() is None
    with serving() as server:
        back = Invalidation(lake, "cache", server.url)
        assert catch_up(back, lake) == 0
        assert [message["everything"] for message in server.messages] == [True]
        back.close()


def test_headers_from_file_or_environment_stay_secret(lake, server, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    append(lake, 0, [row(1, 1, b"a", b"{}")])
    file = tmp_path / "headers"
    file.write_bytes(b"\xef\xbb\xbf" + f"Authorization: {SECRET}\r\n\r\nX-Cache: no\r\n".encode())
    monkeypatch.setenv("CACHE_HEADERS", f"authorization: {SECRET}")
    for name, where in (("one", {"headers_file": file}), ("two", {"headers_env": "CACHE_HEADERS"})):
        server.script.append(400)
        invalidation = Invalidation(lake, name, server.url, **where)
        with pytest.raises(Error) as caught:
            catch_up(invalidation, lake)
        headers = {key.lower(): value for key, value in server.requests[-1][0].items()}
        assert headers["authorization"] == SECRET
        assert headers["content-type"] == "application/json"
        assert catch_up(invalidation, lake) == 0
        invalidation.close()
        for text in (
            str(caught.value),
            repr(invalidation),
            repr(vars(invalidation)),
            caplog.text,
            invalidation.path.read_text(),
        ):
            assert "tenpence" not in text


def test_headers_are_read_again_when_a_token_has_expired(lake, server, tmp_path):
    append(lake, 0, [row(1, 1, b"a", b"{}")])
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer old")

    def expire():
        file.write_text("Authorization: Bearer new")
        return 401

    server.script.extend([expire, 204, 401])
    invalidation = Invalidation(lake, "cache", server.url, headers_file=file, backoff=0)
    assert catch_up(invalidation, lake) == 0
    append(lake, 1, [row(1, 2, b"b", b"{}")])
    with pytest.raises(Error, match="refused a batch with status 401"):  # the headers are still the same
        catch_up(invalidation, lake)
    invalidation.close()
    logins = [
        {name.lower(): text for name, text in headers.items()}["authorization"] for headers, *_ in server.requests
    ]
    assert logins == ["Bearer old", "Bearer new", "Bearer new"]


BAD = [
    ({"url": "ftp://cache/"}, "expected one such as https"),
    ({"url": "cache.example/drop?key=tenpence"}, "the url is 'cache.example/drop'; expected one such as https"),
    ({"url": "cache"}, "expected one such as https"),
    ({"url": "http://user:tenpence@cache/"}, "expected that in a header"),
    ({"url": "http://[tenpence"}, "the url cannot be read"),
    ({"batch_size": 0}, "batch_size is 0"),
    ({"timeout": 0}, "timeout is 0"),
    ({"retries": -1}, "retries is -1"),
    ({"name": "a/b"}, "the name is"),
    ({"headers_file": "/nowhere/headers"}, "No such file"),
    ({"headers_file": "/"}, "/: Is a directory, expected lines of Name: value"),
    ({"headers_file": "/dev/zero"}, "/dev/zero: more than 65536 bytes, expected lines of Name: value"),
    ({"headers_env": "NOT_THERE_AT_ALL"}, "the environment has no NOT_THERE_AT_ALL"),
    ({"headers_env": "BROKEN"}, "line 1 is not a header"),
    ({"headers_env": "HOST"}, "line 1 sets Host"),
    ({"headers_env": "HOST", "headers_file": "x"}, "expected one of them"),
]


@pytest.mark.parametrize(("given", "wanted"), BAD, ids=str)
def test_invalid_invalidation_is_refused(lake, monkeypatch, given, wanted):
    monkeypatch.setenv("BROKEN", "tenpence")
    monkeypatch.setenv("HOST", "Host: elsewhere")
    with pytest.raises(UsageError, match=wanted) as caught:
        Invalidation(**{"lake": lake, "name": "cache", "url": NOWHERE, **given})
    assert "tenpence" not in str(caught.value)


def test_damaged_position_file_is_reported(lake, invalidation):
    invalidation.path.write_text("{")
    with pytest.raises(Error, match="remove it, then all keys are invalidated"):
        invalidation.position()


PROGRAM = """
import sys
from penstock.spark.dependents.dependent import catch_up
from penstock.spark.dependents.kinds.invalidation import Invalidation
from penstock.spark import Lake

lake = Lake(sys.argv[1])
catch_up(Invalidation(lake, "cache", sys.argv[2], batch_size=2), lake)
"""


@pytest.mark.process
@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_kill_before_the_position_is_stored_repeats_the_request(lake, server, invalidation, accepted):
    """The server kills the client after the given number of answers, before it answers the next request."""
    before = invalidation.position()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, lake.path, server.url], cwd=ROOT)

    def kill():
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
        return "cut"

    server.script.extend([*[204] * accepted, kill])
    assert process.wait(PATIENCE) == -signal.SIGKILL
    assert keys_of(server.messages) == ["0", "1", "2", "3", "4"][: 2 * accepted + 2]
    assert invalidation.position() == before
    assert catch_up(invalidation, lake) == 1
    assert keys_of(server.messages[accepted + 1 :]) == ["0", "1", "2", "3", "4"]
    assert sorted(os.listdir(invalidation.path.parent)) == ["cache.json"]
