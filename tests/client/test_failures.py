"""The exceptions of streams that cannot begin: from Python, from read_changes, and from `penstock tail`.

Each row of docs/howto/failures.md is a row here.
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import Node, connect, errors, read_changes
from penstock.cli import main
from penstock.client.blocking import LoopThread
from penstock.client.consumers.consumer import Consumer
from penstock.client.positions.file_positions import FilePositions
from penstock.node.auth import User
from penstock.node.auth.certificates import make_certificates
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from tests.client.peer import Script, in_loop, reply, serving, stats_reply
from tests.node.balanced_nodes import balance
from tests.ports import free_ports

PASSWORD = "secret"
ROLES = {"ada": "admin", "reader": "data_reader[beer]", "stranger": "data_dcp_reader[wine]"}
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "failures.md"


class _Banner(asyncio.Protocol):
    """A peer of another protocol: it sends its banner first, or answers the first bytes with it, or neither."""

    def __init__(self, greeting: bytes, answer: bytes) -> None:
        self.greeting, self.answer = greeting, answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.greeting)

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.answer)


@contextmanager
def peer(greeting: bytes = b"", answer: bytes = b""):
    """Run a peer of another protocol; yield its port."""

    async def listen():
        return await asyncio.get_running_loop().create_server(lambda: _Banner(greeting, answer), "127.0.0.1", 0)

    async def close(server):
        server.close()

    with LoopThread("banner") as loop:
        server = loop.run(listen())
        yield server.sockets[0].getsockname()[1]
        loop.run(close(server))


def answer_as_memcached(_, frame):
    if frame.opcode == Opcode.STAT and not frame.key:
        return stats_reply(frame, {"pid": 1, "version": "1.6.21", "curr_items": 0})
    if frame.opcode in (Opcode.GET, Opcode.SET, Opcode.NOOP, Opcode.VERSION):
        return None
    return reply(frame, Status.UNKNOWN_COMMAND, value=b"Unknown command")


def refuse_dcp(_, frame):
    return reply(frame, Status.UNKNOWN_COMMAND) if frame.opcode == Opcode.DCP_OPEN else None


class Servers:
    """The servers of the rows; each begins when a row needs it."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack, self._directory = stack, directory
        with change_users(directory / "users.json") as accounts:
            for name, role in ROLES.items():
                accounts[name] = make_account(User.from_texts(name, [role]), PASSWORD, 4096)
        for name, made in make_certificates([], "ada", 2, datetime.now(UTC)).items():
            (directory / f"{name}.pem").write_bytes(made.certificate)
            (directory / f"{name}.key").write_bytes(made.key)
        self._tls: dict[str, Any] = {
            "certificate": directory / "server.pem",
            "key": directory / "server.key",
            "tls_port": 0,
        }
        self.open = stack.enter_context(Node.running(["beer"], vbuckets=4))
        options: dict[str, Any] = {"users": directory / "users.json", **self._tls}
        self.guarded = stack.enter_context(Node.running(["beer"], vbuckets=4, **options))
        self.ca = directory / "ca.pem"

    def peer(self, greeting: bytes = b"", answer: bytes = b"") -> str:
        return f"couchbase://127.0.0.1:{self._stack.enter_context(peer(greeting, answer))}/beer"

    def script(self, answer: Any) -> str:
        url: str = self._stack.enter_context(serving(Script(answer))).url()
        return url.rstrip("?")

    def absent(self) -> str:
        return self.open.url("beer").replace("beer", "wine")

    def nothing(self) -> str:
        return f"couchbase://127.0.0.1:{free_ports(1)[0]}/beer"

    def tls_on_plain_port(self) -> str:
        return self.open.url("beer").replace("couchbase:", "couchbases:")

    def plain_on_tls_port(self) -> str:
        return f"couchbase://127.0.0.1:{self.guarded.tls_port}/beer"

    def untrusted(self) -> str:
        return f"couchbases://127.0.0.1:{self.guarded.tls_port}/beer"

    def half_encrypted(self) -> str:
        """A cluster of two nodes, of which the second has no port with TLS."""
        nodes = [
            self._stack.enter_context(Node.running(["beer"], vbuckets=4, **options)) for options in (self._tls, {})
        ]
        balance(nodes)
        return f"couchbases://127.0.0.1:{nodes[0].tls_port}/beer?ca={self.ca}"


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with ExitStack() as stack:
        yield Servers(stack, tmp_path_factory.mktemp("servers"))


@dataclass(frozen=True)
class Failure:
    """A row: the connection string, the exception, and the message.

    Attributes:
        url: makes the connection string.
        error: the exception.
        text: pattern of the message.
        query: options of the connection string.
        user: the user who logs in; empty: no login.
        options: options of the stream.
        words: the same options as words of the command line; None: the row is not for the command line.
    """

    url: Callable[[Servers], str]
    error: type[errors.Error]
    text: str
    query: str = ""
    user: str = ""
    options: dict[str, Any] | None = None
    words: tuple[str, ...] | None = ()


PORTS = r"expected a data port of Couchbase \(11210, with TLS 11207\)"
SHORT = "retrySeconds=0.1&connectTimeout=0.3"

FROM_BEGINNING = ("--from", "beginning")

HTTP_SENTENCE = f"HTTP: use bootstrap=http for a management port; {PORTS}"

FAILURES = {
    "HTTP": Failure(lambda s: s.peer(answer=b"HTTP/1.1 400 Bad\r\n\r\n"), errors.NotCouchbase, HTTP_SENTENCE),
    "a node's HTTP": Failure(
        lambda s: f"couchbase://127.0.0.1:{s.open.http_port}/beer",
        errors.NotCouchbase,
        f"speaks {HTTP_SENTENCE}",
    ),
    "SSH": Failure(lambda s: s.peer(b"SSH-2.0-x\r\n"), errors.NotCouchbase, f"speaks SSH; {PORTS}"),
    "text": Failure(lambda s: s.peer(answer=b"ERROR\r\n"), errors.NotCouchbase, "the text protocol of memcached"),
    "one byte": Failure(lambda s: s.peer(b"\n"), errors.NotCouchbase, r"its first bytes are b'\\n'"),
    "TLS, but plain": Failure(
        lambda s: s.peer(answer=b"\x15\x03\x01\x00\x02\x02\x46"), errors.NotCouchbase, "TLS: use couchbases://"
    ),
    "plain, but TLS": Failure(
        Servers.tls_on_plain_port, errors.Unreachable, f"ended the TLS handshake; {PORTS}", query="retrySeconds=0.1"
    ),
    "silence": Failure(lambda s: s.peer(), errors.Unreachable, f"sent nothing within 0.3 s; {PORTS}", query=SHORT),
    "nothing": Failure(Servers.nothing, errors.Unreachable, "did not serve for .*last failure", query=SHORT),
    "no such host": Failure(lambda s: "couchbase://name.invalid/beer", errors.Unreachable, "last failure", query=SHORT),
    "memcached": Failure(
        lambda s: s.script(answer_as_memcached),
        errors.UnsupportedServer,
        "no vbuckets, and no change streams",
    ),
    "no DCP": Failure(lambda s: s.script(refuse_dcp), errors.UnsupportedServer, "has no DCP", words=FROM_BEGINNING),
    "absent bucket": Failure(Servers.absent, errors.BucketNotServed, "no bucket 'wine' on .*; expected the name"),
    "another's bucket": Failure(
        lambda s: s.guarded.url("beer"), errors.BucketAccessDenied, "user 'stranger' may not access it", user="stranger"
    ),
    "no login": Failure(
        lambda s: s.guarded.url("beer"), errors.BucketAccessDenied, "a client without login may not access it"
    ),
    "wrong login": Failure(
        lambda s: s.guarded.url("beer"), errors.AuthenticationFailed, "refused the login of 'nobody'", user="nobody"
    ),
    "no role": Failure(
        lambda s: s.guarded.url("beer"),
        errors.AccessDenied,
        "user 'reader' may not read change streams",
        user="reader",
        words=FROM_BEGINNING,
    ),
    "no role, from now": Failure(
        lambda s: s.guarded.url("beer"),
        errors.AccessDenied,
        "user 'reader' may not read change streams",
        user="reader",
        options={"start": "now"},
    ),
    "certificate": Failure(Servers.untrusted, errors.UntrustedNode, "is not trusted: .*; option ca names", user="ada"),
    "no TLS in the map": Failure(
        Servers.half_encrypted, errors.ServiceMissing, "no data port with TLS of 127.0.0.1:[0-9]+, expected"
    ),
    "no collection": Failure(
        lambda s: s.open.url("beer"),
        errors.NoSuchCollection,
        "the bucket has no collection '_default.ales'",
        query="collections=ales",
    ),
    "no scope": Failure(
        lambda s: s.open.url("beer"),
        errors.NoSuchCollection,
        "has no scope 'inventory'",
        query="scope=inventory",
    ),
    "no vbucket": Failure(
        lambda s: s.open.url("beer"),
        errors.UsageError,
        "vbucket 9 of .* has 4",
        options={"vbuckets": [9]},
        words=("--vbucket", "9"),
    ),
}


def make_url(failure, servers):
    url = failure.url(servers)
    return url + ("&" if "?" in url else "?") + failure.query if failure.query else url


def make_login(failure):
    return {"username": failure.user, "password": PASSWORD} if failure.user else {}


def get_exit_code(error):
    return 2 if issubclass(error, errors.UsageError) else 1


async def read_first(url, login, options):
    async with connect(url, **login) as bucket, aclosing(bucket.changes(stop="now", **options)) as changes:
        await anext(changes)


@pytest.mark.parametrize("name", FAILURES)
@in_loop
async def test_stream_raises(name, servers):
    failure = FAILURES[name]
    with pytest.raises(failure.error, match=failure.text) as caught:
        await read_first(make_url(failure, servers), make_login(failure), failure.options or {})
    assert type(caught.value) is failure.error
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("name", FAILURES)
def test_command_prints_the_sentence(name, servers, capsys, monkeypatch, tmp_path):
    failure = FAILURES[name]
    (tmp_path / "password").write_text(PASSWORD + "\n")
    login = ["--username", failure.user, "--password-file", str(tmp_path / "password")] if failure.user else []
    words = ["tail", "--until", "now", "--url", make_url(failure, servers), *login, *(failure.words or ())]
    assert main(words) == get_exit_code(failure.error)
    captured = capsys.readouterr()
    assert not captured.out
    assert re.search(f"^penstock: .*{failure.text}", captured.err, re.MULTILINE)


def test_blocking_reader_raises_at_its_first_batch(servers):
    failure = FAILURES["HTTP"]
    changes = read_changes(make_url(failure, servers))
    with pytest.raises(errors.NotCouchbase):
        next(changes)


def test_collection_is_checked_before_the_stream(servers):
    async def ask():
        async with connect(servers.open.url("beer")) as bucket:
            await bucket.stream(collections=["ales"])

    with pytest.raises(errors.NoSuchCollection):
        asyncio.run(ask())


# Saved positions


def advance(position):
    return replace(position, seqno=position.seqno + 9, snap_end=position.seqno + 9)


MISTAKES = {
    "another bucket": (
        lambda saved: replace(saved, uuid="0" * 32),
        errors.PositionOfOtherBucket,
        "reset the positions",
    ),
    "ahead": (
        lambda saved: replace(saved, by_vbucket={vb: advance(at) for vb, at in saved.by_vbucket.items()}),
        errors.PositionAhead,
        "the server's newest",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
@in_loop
async def test_consumer_refuses_positions(name, servers, tmp_path):
    change, error, text = MISTAKES[name]
    store = FilePositions(str(tmp_path / "positions"))
    async with connect(servers.open.url("beer")) as bucket:
        await bucket.upsert("k", b"v")
        async with Consumer(bucket, store, stop="now") as consumer:
            assert [change.key async for change in consumer.changes()]
        wrong = change(await store.read())
        await store.write(wrong)
        with pytest.raises(error, match=text):
            async with Consumer(bucket, store, stop="now"):
                pass
        assert await store.read() == wrong


def test_page_has_every_exception():
    rows = re.findall(r"^\| .* \| `(\w+)`[^|]*\| (\d) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    tested = [*(failure.error for failure in FAILURES.values()), *(error for _, error, _ in MISTAKES.values())]
    assert {(name, int(code)) for name, code in rows} == {(error.__name__, get_exit_code(error)) for error in tested}


# While a stream runs


@in_loop
async def test_running_stream_raises_once_and_keeps_its_place(tmp_path):
    """The node of the stream is replaced by another program, and comes back."""
    port = free_ports(1)[0]
    directory = tmp_path / "data"

    def run_node():
        return Node.running(["beer"], vbuckets=1, port=port, data_dir=directory)

    stack = ExitStack()
    await asyncio.to_thread(lambda: stack.enter_context(run_node()))
    url = f"couchbase://127.0.0.1:{port}/beer"
    async with connect(url) as bucket:
        await bucket.upsert_many([(f"k{number}", b"v") for number in range(5)])
        stream = await bucket.stream()
        async with stream:
            delivery = await stream.next_delivery()
            assert delivery is not None
            seen = [change.key for change in delivery.changes]
            assert len(seen) == 5
            await asyncio.to_thread(stack.close)
            server = await asyncio.get_running_loop().create_server(
                lambda: _Banner(b"SSH-2.0-x\r\n", b""), "127.0.0.1", port
            )
            with pytest.raises(errors.NotCouchbase, match="speaks SSH"):
                await stream.next_delivery()
            server.close()
        positions = stream.positions
        assert positions[0].seqno == 5
    await asyncio.to_thread(lambda: stack.enter_context(run_node()))
    async with connect(url) as bucket:
        await bucket.upsert("k5", b"v")
        assert [change.key async for change in bucket.changes(positions, "now")] == [b"k5"]
    await asyncio.to_thread(stack.close)


# Hosts without vbuckets


@in_loop
async def test_host_without_the_data_service_leads_to_the_nodes_of_the_map(servers):
    node = servers.open

    def answer(peer, frame):
        if frame.opcode == Opcode.HELLO:
            return reply(frame, value=frame.value)
        return reply(frame, Status.NOT_SUPPORTED) if frame.opcode == Opcode.DCP_OPEN else None

    async with Script(answer) as script, connect(node.url("beer")) as bucket:
        await bucket.upsert("k", b"v")
        script.config = {
            "rev": 1,
            "nodesExt": [
                {"services": {"mgmt": 8091}, "thisNode": True, "hostname": "query.example"},
                {"services": {"kv": node.kv_port}, "hostname": "127.0.0.1"},
            ],
            "vBucketServerMap": {"serverList": [f"127.0.0.1:{node.kv_port}"], "vBucketMap": [[0]] * 4},
        }
        async with connect(script.url()) as through:
            assert (await through.get("k")).value == b"v"
            assert b"k" in {change.key async for change in through.changes(stop="now")}


@in_loop
async def test_dead_host_of_several_is_skipped(servers):
    dead, port = free_ports(1)[0], servers.open.kv_port
    async with connect(f"couchbase://127.0.0.1:{dead},127.0.0.1:{port}/beer") as bucket:
        await bucket.upsert("k", b"v")
        assert b"k" in {change.key async for change in bucket.changes(stop="now")}
