"""Unauthenticated connections: small memory, few replies, one log line each, and no effect on other clients."""

import logging
import resource
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from contextlib import ExitStack, suppress

import pytest

from penstock.node import Node
from penstock.node.auth import User, login_attempts
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.node.auth.verifier import MIN_ITERATIONS
from penstock.node.server.connection_limits import (
    MAX_FRAME_BEFORE_LOGIN,
    MAX_REQUESTS_BEHIND_LOGIN,
    MAX_UNREAD_BEFORE_LOGIN,
)
from penstock.node.session import connection_registry
from penstock.node.session.connection_registry import MAX_UNAUTHENTICATED
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.frame import HEADER, Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.cluster import GetErrorMap
from penstock.wire.messages.kv import Get, Hello, Noop, SelectBucket, Set, Stat, Version, pack_features
from penstock.wire.messages.sasl import SaslAuth, SaslListMechs, SaslStep
from tests.node.watch import run
from tests.node.wire_client import connected
from tests.patience import PATIENCE
from tests.waiting import wait_readable

S = Status
HALF_OPEN = 10_000
RIGHT, WRONG = b"\0alice\0wonderland", b"\0alice\0looking-glass"


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users.json"
    with change_users(path) as accounts:
        accounts["alice"] = make_account(User.from_texts("alice", ["admin"]), "wonderland", MIN_ITERATIONS)
    return path


@pytest.fixture
def running(users):
    """Return a function that runs a node with users; it takes options of the node."""

    def running(**options):
        return Node.running(["default"], vbuckets=4, users=users, allow_plain=True, **options)

    return running


@pytest.fixture
def checked_often(monkeypatch):
    monkeypatch.setattr(connection_registry, "_CHECK_SECONDS", 0.02)


@pytest.fixture
def node(running):
    with running() as node:
        yield node


@pytest.fixture
def unauthenticated(node):
    with connected(node) as client:
        yield client


@pytest.fixture(autouse=True)
def log(caplog):
    """Record the log of the node, and check that it has no internal error."""
    caplog.set_level(logging.INFO, "penstock.node")
    yield caplog
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def count_lines(log, text):
    """Return the number of log lines with a text."""
    return sum(text in record.getMessage() for record in list(log.records))


def log_in(client, value=RIGHT):
    return client.status(SaslAuth(key=b"PLAIN", value=value))


def can_log_in_and_write(node):
    """Return whether a new client can log in, write and read."""
    with connected(node) as client:
        assert log_in(client) == S.SUCCESS
        assert client.set(b"k", b"v").specific == S.SUCCESS
        return bool(client.get(b"k").value == b"v")


def wait_until(node, condition):
    """Wait until a condition is true, and check it on the node's event loop."""
    deadline = time.monotonic() + PATIENCE
    while not run(node, condition):
        assert time.monotonic() < deadline, f"the condition was still false after {PATIENCE} s"


# Replies before the login


def make_auth(mechanism, value=b""):
    return Frame(Magic.REQUEST, Opcode.SASL_AUTH, key=mechanism, value=value)


ANSWERS = [
    ("a noop", Noop(), S.SUCCESS),
    ("the version", Version(), S.SUCCESS),
    ("the mechanisms", SaslListMechs(), S.SUCCESS),
    ("the error map", GetErrorMap(version=2), S.SUCCESS),
    ("a document", Get(key=b"k"), S.EACCESS),
    ("a change", Set(key=b"k"), S.EACCESS),
    ("statistics", Stat(), S.EACCESS),
    ("a bucket", SelectBucket(key=b"default"), S.EACCESS),
    ("a bucket that does not exist", SelectBucket(key=b"nowhere"), S.EACCESS),
    ("the list of buckets", Frame(Magic.REQUEST, Opcode.LIST_BUCKETS), S.EACCESS),
    ("the cluster map", Frame(Magic.REQUEST, Opcode.GET_CLUSTER_CONFIG), S.EACCESS),
    ("an unknown opcode", Frame(Magic.REQUEST, 0xEE), S.EACCESS),
    ("a change stream", Frame(Magic.REQUEST, Opcode.DCP_OPEN, extras=bytes(8), key=b"name"), S.EACCESS),
    ("features in an odd number of bytes", Hello(value=b"\0\4\0"), S.EINVAL),
    ("another mechanism", make_auth(b"KERBEROS"), S.AUTH_ERROR),
    ("no mechanism", make_auth(b""), S.EINVAL),
    ("a mechanism with a long name", make_auth(b"SCRAM-SHA512" * 300), S.AUTH_ERROR),
    ("a user with a long name", make_auth(b"SCRAM-SHA512", b"n,,n=" + b"u" * 900 + b",r=N"), S.EINVAL),
    ("a long message", make_auth(b"SCRAM-SHA512", b"n,,n=u,r=" + b"N" * 1016), S.EINVAL),
    ("a step before the first", SaslStep(key=b"SCRAM-SHA512", value=b"c=biws,r=N,p=AAAA"), S.EINVAL),
]


@pytest.mark.parametrize(("case", "message", "status"), ANSWERS, ids=[row[0] for row in ANSWERS])
def test_requests_before_login_get_their_status(unauthenticated, case, message, status):
    unauthenticated.ask(Hello(value=pack_features([Feature.XERROR])))
    assert Status(unauthenticated.status(message)) == status
    assert log_in(unauthenticated) == S.SUCCESS  # the connection still works
    assert unauthenticated.set(b"k", b"v").specific == S.SUCCESS


@pytest.mark.parametrize("message", [make_auth(b"KERBEROS"), make_auth(b"PLAIN", b"bob\0alice\0wonderland")])
def test_abandoned_logins_do_not_fill_the_log(unauthenticated, log, message):
    unauthenticated.send(*[message] * 20, Noop())
    assert [unauthenticated.receive().specific for _ in range(21)] == [S.AUTH_ERROR] * 20 + [S.SUCCESS]
    assert count_lines(log, "refused") == 1


def test_sasl_steps_out_of_order_are_refused(unauthenticated):
    first = SaslAuth(key=b"SCRAM-SHA1", value=b"n,,n=alice,r=N")
    step = SaslStep(key=b"SCRAM-SHA1", value=b"c=biws,r=N,p=AAAA")
    assert unauthenticated.status(first) == S.AUTH_CONTINUE
    assert unauthenticated.status(step) == S.EINVAL
    assert unauthenticated.status(step) == S.EINVAL
    assert unauthenticated.status(first) == S.AUTH_CONTINUE
    assert unauthenticated.status(Get(key=b"k")) == S.EACCESS
    assert unauthenticated.status(SaslStep(key=b"SCRAM-SHA256", value=b"c=biws,r=N,p=AAAA")) == S.EINVAL
    assert log_in(unauthenticated) == S.SUCCESS


def test_long_agent_name_is_truncated(node, unauthenticated):
    assert unauthenticated.status(Hello(key=b"a" * 4000, value=b"")) == S.SUCCESS
    assert run(
        node, lambda: [len(connection.session.agent.name) for connection in node.connections.open_connections]
    ) == [250]


def test_wrong_password_takes_longer_each_time(node, log, monkeypatch):
    """The total delay is at least the sum for the failures; the right password waits as well."""
    failures, first = 5, 0.01
    monkeypatch.setattr(login_attempts, "FIRST_SECONDS", first)
    started = time.monotonic()
    with connected(node) as client, connected(node) as other:
        for number in range(failures):
            assert log_in(client, WRONG) == S.AUTH_ERROR
            assert other.status(Noop()) == S.SUCCESS
            assert count_lines(log, "refused") == number + 1
        client.send(SaslAuth(key=b"PLAIN", value=RIGHT))
        assert other.status(Noop()) == S.SUCCESS  # no other client waits
        assert client.receive().specific == S.SUCCESS
    assert time.monotonic() - started >= sum(first * 2**number for number in range(failures))
    assert "looking-glass" not in log.text


def test_new_sasl_exchange_ends_previous_login(unauthenticated):
    assert log_in(unauthenticated) == S.SUCCESS
    assert unauthenticated.status(make_auth(b"SCRAM-SHA1", b"n,,n=bob,r=N")) == S.AUTH_CONTINUE
    assert unauthenticated.status(Get(key=b"k")) == S.EACCESS


# Limits of bytes


@pytest.mark.parametrize("length", [MAX_FRAME_BEFORE_LOGIN + 1, 2**31 - 1, 2**32 - 1])
def test_oversized_length_ends_connection(node, unauthenticated, length):
    """The node allocates no memory for such a frame before a login."""
    tracemalloc.start()
    try:
        unauthenticated.send(HEADER.pack(Magic.REQUEST, Opcode.SET, 3, 8, 0, 0, length, 1, 0) + bytes(1000))
        assert unauthenticated.ended()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 256 * 1024
    assert can_log_in_and_write(node)


@pytest.mark.parametrize("whole", [False, True])
def test_oversized_frame_ends_connection_in_one_piece_or_many(node, unauthenticated, whole):
    frame = Hello(key=b"a" * (MAX_FRAME_BEFORE_LOGIN - 24 + 1), value=b"").encode()
    unauthenticated.send(*([frame] if whole else [frame[:100], frame[100:]]))
    assert unauthenticated.ended()
    assert can_log_in_and_write(node)


def test_longest_allowed_frame_is_answered(unauthenticated):
    assert unauthenticated.status(Hello(key=b"a" * (MAX_FRAME_BEFORE_LOGIN - 24), value=b"")) == S.SUCCESS


def test_requests_behind_a_login_are_limited(node, log):
    """While a guess waits for its answer, a client can pipeline a limited number of requests behind it."""
    with connected(node) as client, connected(node) as flooding:
        for _ in range(3):
            assert log_in(client, WRONG) == S.AUTH_ERROR
        client.send(SaslAuth(key=b"PLAIN", value=RIGHT), *[Noop()] * MAX_REQUESTS_BEHIND_LOGIN)
        with suppress(ConnectionError):
            flooding.send(SaslAuth(key=b"PLAIN", value=WRONG), *[Noop()] * 50_000)
        assert flooding.ended()
        assert count_lines(log, f"expected at most {MAX_REQUESTS_BEHIND_LOGIN}") == 1
        replies = [client.receive() for _ in range(1 + MAX_REQUESTS_BEHIND_LOGIN)]
        assert {frame.specific for frame in replies} == {S.SUCCESS}


def test_client_that_reads_no_replies_is_disconnected(node, log):
    with connected(node, receive_buffer=4096) as client:
        request = GetErrorMap(version=2).encode()
        with suppress(ConnectionError):
            while True:
                client.send(request * 100)
        assert count_lines(log, "does not read its replies") == 1
    assert can_log_in_and_write(node)


def test_unread_replies_are_limited(node, unauthenticated):
    """Replies to the allowed number of pipelined requests are sent: the system's buffers hold them."""
    times = 4 * MAX_UNREAD_BEFORE_LOGIN // 9000
    unauthenticated.send(GetErrorMap(version=2).encode() * times)
    for _ in range(times):
        assert unauthenticated.receive().specific == S.SUCCESS


# Shares of addresses


def test_one_address_cannot_take_all_connections(running, log):
    with running(most_connections=6) as node, ExitStack() as stack:
        crowd = [stack.enter_context(connected(node)) for _ in range(3)]
        for client in crowd:
            assert client.status(Noop()) == S.SUCCESS
        for _ in range(2):
            with connected(node) as refused:
                assert refused.ended()
        assert count_lines(log, "127.0.0.1 has 3 of at most 6 connections") == 1
        other = stack.enter_context(connected(node, address="127.0.0.2"))
        assert log_in(other) == S.SUCCESS
        crowd[0].disconnect()
        wait_until(node, lambda: len(node.connections.open_connections) == 3)
        assert log_in(stack.enter_context(connected(node))) == S.SUCCESS
        assert stack.enter_context(connected(node)).ended()


def test_unauthenticated_connections_end_only_those_of_their_address(running, monkeypatch):
    monkeypatch.setattr(connection_registry, "MAX_UNAUTHENTICATED", 8)
    with running() as node, ExitStack() as stack:
        other = stack.enter_context(connected(node, address="127.0.0.2"))
        assert other.status(Noop()) == S.SUCCESS
        crowd = [stack.enter_context(connected(node)) for _ in range(10)]
        for client in crowd[:6]:  # of 8 places, 127.0.0.2 has 1 and 127.0.0.1 gets 4
            assert client.ended()
        for client in (*crowd[6:], other):
            assert log_in(client) == S.SUCCESS


def test_each_address_can_connect_when_all_places_are_taken(running, monkeypatch):
    monkeypatch.setattr(connection_registry, "MAX_UNAUTHENTICATED", 2)
    with running() as node, ExitStack() as stack:
        crowd = [stack.enter_context(connected(node, address=f"127.0.0.{n}")) for n in range(2, 6)]
        assert crowd[0].ended()
        assert crowd[1].ended()
        assert [log_in(client) for client in crowd[2:]] == [S.SUCCESS] * 2


@pytest.mark.usefixtures("checked_often")
def test_client_without_login_is_disconnected(running, log):
    with running(login_timeout=0.3) as node, connected(node) as silent, connected(node) as busy:
        with suppress(EOFError, ConnectionError):
            while True:
                busy.ask(Noop())
        assert silent.ended()
        assert count_lines(log, "no login within 0.3 s") == 2
        assert can_log_in_and_write(node)


def test_client_with_login_stays_connected(running):
    with running(login_timeout=0.2) as node, connected(node) as user, connected(node) as silent:
        assert log_in(user) == S.SUCCESS
        assert silent.ended()
        assert user.status(Noop()) == S.SUCCESS


@pytest.mark.usefixtures("checked_often")
@pytest.mark.parametrize("known", [False, True])
def test_incomplete_frame_ends_connection(running, log, known):
    """The limit also applies if more bytes of the frame keep coming."""
    with running(frame_timeout=0.3) as node, connected(node) as slow, connected(node) as other:
        if known:
            assert log_in(slow) == S.SUCCESS
        slow.send(HEADER.pack(Magic.REQUEST, Opcode.NOOP, 0, 0, 0, 0, MAX_FRAME_BEFORE_LOGIN // 2, 1, 0))
        deadline = time.monotonic() + PATIENCE
        while not wait_readable([slow.socket], 0.02):
            assert time.monotonic() < deadline, f"the connection was still open after {PATIENCE} s"
            slow.socket.send(b"x")
        assert slow.ended()
        assert count_lines(log, "an incomplete frame for 0.3 s") == 1
        assert other.status(Noop()) == S.SUCCESS
        assert can_log_in_and_write(node)


# Many connections

CROWD = """
import resource, socket, sys
port, count = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
crowd = []
for _ in range(count):
    one = socket.create_connection(("127.0.0.1", port), 30)
    one.sendall(bytes.fromhex("801f0004000000000000"))  # the beginning of a HELLO
    crowd.append(one)
print("connected", flush=True)
sys.stdin.read()
"""


def raise_file_limit(wanted):
    """Raise this process's limit of open files, and return the number of connections that it can have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(wanted, hard - 500)


@pytest.mark.process
def test_node_serves_others_beside_a_crowd_of_incomplete_frames(running, log):
    """The connections come from another process, so that each process needs one descriptor for each."""
    count = raise_file_limit(HALF_OPEN)
    assert count >= 2000, "this machine allows a process too few open files"
    with running() as node:
        crowd = [sys.executable, "-c", CROWD, str(node.kv_port), str(count)]
        with subprocess.Popen(crowd, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                assert wait_readable([process.stdout], 120), "the clients did not connect in time"
                assert process.stdout.readline() == b"connected\n"
                wait_until(node, lambda: node.connections.total >= count)
                assert run(node, lambda: len(node.connections.open_connections)) <= MAX_UNAUTHENTICATED // 2 + 1
                refused_connections = count_lines(log, "no login yet")
                assert refused_connections >= count - MAX_UNAUTHENTICATED // 2
                assert can_log_in_and_write(node)
            finally:
                process.stdin.close()
        wait_until(node, lambda: not node.connections.open_connections)
        assert can_log_in_and_write(node)
    repeated = Counter(record.getMessage() for record in log.records if record.levelno >= logging.WARNING)
    assert not repeated
