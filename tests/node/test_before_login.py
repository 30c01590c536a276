"""Strangers: who has not logged in costs little, is told little, is noted once, and keeps nobody from being served."""

import logging
import resource
import select
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from contextlib import ExitStack, suppress

import pytest

from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import account_of
from penstock.node.auth.users_file import change_users
from penstock.node.auth.verifier import MIN_ITERATIONS
from penstock.node.server.connection_limits import MAX_BEFORE_LOGIN, MOST_BEHIND_LOGIN, UNREAD_BEFORE_LOGIN
from penstock.node.session import connection_registry
from penstock.node.session.connection_registry import MOST_STRANGERS
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

S = Status
HALF_OPEN = 10_000
RIGHT, WRONG = b"\0alice\0wonderland", b"\0alice\0looking-glass"


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users.json"
    with change_users(path) as accounts:
        accounts["alice"] = account_of(User.of("alice", ["admin"]), "wonderland", MIN_ITERATIONS)
    return path


@pytest.fixture
def running(users):
    """Run a node that asks for a login. Options: of the node."""

    def running(**options):
        return Node.running(["default"], vbuckets=4, users=users, allow_plain=True, **options)

    return running


@pytest.fixture
def node(running):
    with running() as node:
        yield node


@pytest.fixture
def stranger(node):
    with connected(node) as client:
        yield client


@pytest.fixture(autouse=True)
def log(caplog):
    """What the node logs. Whatever a stranger does, no defect of ours may come to light."""
    caplog.set_level(logging.INFO, "penstock.node")
    yield caplog
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def said(log, text):
    """Return how often something was logged."""
    return sum(text in record.getMessage() for record in list(log.records))


def log_in(client, value=RIGHT):
    return client.status(SaslAuth(key=b"PLAIN", value=value))


def serves(node):
    """Is a user who comes now served?"""
    with connected(node) as client:
        assert log_in(client) == S.SUCCESS
        assert client.set(b"k", b"v").specific == S.SUCCESS
        return bool(client.get(b"k").value == b"v")


def until(node, question):
    """Ask on the node's event loop until the answer is yes."""
    deadline = time.monotonic() + PATIENCE
    while not run(node, question):
        assert time.monotonic() < deadline, "it never became so"


# What is answered


def auth(mechanism, value=b""):
    return Frame(Magic.REQUEST, Opcode.SASL_AUTH, key=mechanism, value=value)


ANSWERS = [
    ("nothing in particular", Noop(), S.SUCCESS),
    ("the version", Version(), S.SUCCESS),
    ("how to log in", SaslListMechs(), S.SUCCESS),
    ("what statuses mean", GetErrorMap(version=2), S.SUCCESS),
    ("a document", Get(key=b"k"), S.EACCESS),
    ("a document to be stored", Set(key=b"k"), S.EACCESS),
    ("statistics", Stat(), S.EACCESS),
    ("a bucket", SelectBucket(key=b"default"), S.EACCESS),
    ("a bucket that there is not", SelectBucket(key=b"nowhere"), S.EACCESS),
    ("which buckets there are", Frame(Magic.REQUEST, Opcode.LIST_BUCKETS), S.EACCESS),
    ("where vbuckets are", Frame(Magic.REQUEST, Opcode.GET_CLUSTER_CONFIG), S.EACCESS),
    ("what nobody knows", Frame(Magic.REQUEST, 0xEE), S.EACCESS),
    ("a change stream", Frame(Magic.REQUEST, Opcode.DCP_OPEN, extras=bytes(8), key=b"name"), S.EACCESS),
    ("features, an odd number of bytes of them", Hello(value=b"\0\4\0"), S.EINVAL),
    ("another mechanism", auth(b"KERBEROS"), S.AUTH_ERROR),
    ("no mechanism", auth(b""), S.EINVAL),
    ("a mechanism with a name that is too long", auth(b"SCRAM-SHA512" * 300), S.AUTH_ERROR),
    ("a user with a name that is too long", auth(b"SCRAM-SHA512", b"n,,n=" + b"u" * 900 + b",r=N"), S.EINVAL),
    ("a message that is too long", auth(b"SCRAM-SHA512", b"n,,n=u,r=" + b"N" * 1016), S.EINVAL),
    ("a step before the first", SaslStep(key=b"SCRAM-SHA512", value=b"c=biws,r=N,p=AAAA"), S.EINVAL),
]


@pytest.mark.parametrize(("what", "message", "status"), ANSWERS, ids=[row[0] for row in ANSWERS])
def test_what_a_stranger_is_answered(stranger, what, message, status):
    stranger.ask(Hello(value=pack_features([Feature.XERROR])))
    assert Status(stranger.status(message)) == status
    assert log_in(stranger) == S.SUCCESS  # the connection is as good as before
    assert stranger.set(b"k", b"v").specific == S.SUCCESS


@pytest.mark.parametrize("message", [auth(b"KERBEROS"), auth(b"PLAIN", b"bob\0alice\0wonderland")])
def test_logins_that_nobody_waits_for_do_not_fill_the_log(stranger, log, message):
    stranger.send(*[message] * 20, Noop())
    assert [stranger.receive().specific for _ in range(21)] == [S.AUTH_ERROR] * 20 + [S.SUCCESS]
    assert said(log, "refused") == 1


def test_steps_out_of_order(stranger):
    first = SaslAuth(key=b"SCRAM-SHA1", value=b"n,,n=alice,r=N")
    step = SaslStep(key=b"SCRAM-SHA1", value=b"c=biws,r=N,p=AAAA")
    assert stranger.status(first) == S.AUTH_CONTINUE
    assert stranger.status(step) == S.EINVAL
    assert stranger.status(step) == S.EINVAL
    assert stranger.status(first) == S.AUTH_CONTINUE
    assert stranger.status(Get(key=b"k")) == S.EACCESS
    assert stranger.status(SaslStep(key=b"SCRAM-SHA256", value=b"c=biws,r=N,p=AAAA")) == S.EINVAL
    assert log_in(stranger) == S.SUCCESS


def test_an_agent_with_a_long_name_is_kept_in_part(node, stranger):
    assert stranger.status(Hello(key=b"a" * 4000, value=b"")) == S.SUCCESS
    assert run(node, lambda: [len(connection.session.agent) for connection in node.guests.present]) == [250]


def test_a_wrong_password_takes_longer_each_time(node, log):
    """The waits are at least those that the failures come to; the right password has to wait as well."""
    failures = 5
    started = time.monotonic()
    with connected(node) as client, connected(node) as other:
        for number in range(failures):
            assert log_in(client, WRONG) == S.AUTH_ERROR
            assert other.status(Noop()) == S.SUCCESS
            assert said(log, "refused") == number + 1
        client.send(SaslAuth(key=b"PLAIN", value=RIGHT))
        assert other.status(Noop()) == S.SUCCESS  # nobody else waits
        assert client.receive().specific == S.SUCCESS
    assert time.monotonic() - started >= sum(0.05 * 2**number for number in range(failures))
    assert "looking-glass" not in log.text


def test_who_has_logged_in_is_nobody_while_trying_to_be_another(stranger):
    assert log_in(stranger) == S.SUCCESS
    assert stranger.status(auth(b"SCRAM-SHA1", b"n,,n=bob,r=N")) == S.AUTH_CONTINUE
    assert stranger.status(Get(key=b"k")) == S.EACCESS


# What is not waited for


@pytest.mark.parametrize("length", [MAX_BEFORE_LOGIN + 1, 2**31 - 1, 2**32 - 1])
def test_a_length_without_measure_ends_the_connection(node, stranger, length):
    """And nothing is set aside for it, before anybody has logged in."""
    tracemalloc.start()
    try:
        stranger.send(HEADER.pack(Magic.REQUEST, Opcode.SET, 3, 8, 0, 0, length, 1, 0) + bytes(1000))
        assert stranger.ended()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 256 * 1024
    assert serves(node)


@pytest.mark.parametrize("whole", [False, True])
def test_a_long_frame_ends_the_connection_however_it_arrives(node, stranger, whole):
    frame = Hello(key=b"a" * (MAX_BEFORE_LOGIN - 24 + 1), value=b"").encode()
    stranger.send(*([frame] if whole else [frame[:100], frame[100:]]))
    assert stranger.ended()
    assert serves(node)


def test_a_frame_of_the_longest_kind_is_answered(stranger):
    assert stranger.status(Hello(key=b"a" * (MAX_BEFORE_LOGIN - 24), value=b"")) == S.SUCCESS


def test_what_follows_a_guess_is_not_hoarded(node, log):
    """A guess waits for its answer; a client pipelines some requests behind it, and no more."""
    with connected(node) as client, connected(node) as flooding:
        for _ in range(3):
            assert log_in(client, WRONG) == S.AUTH_ERROR
        client.send(SaslAuth(key=b"PLAIN", value=RIGHT), *[Noop()] * MOST_BEHIND_LOGIN)
        with suppress(ConnectionError):
            flooding.send(SaslAuth(key=b"PLAIN", value=WRONG), *[Noop()] * 50_000)
        assert flooding.ended()
        assert said(log, f"expected at most {MOST_BEHIND_LOGIN}") == 1
        replies = [client.receive() for _ in range(1 + MOST_BEHIND_LOGIN)]
        assert {frame.specific for frame in replies} == {S.SUCCESS}


def test_who_reads_no_replies_is_ended(node, log):
    with connected(node, receive_buffer=4096) as client:
        request = GetErrorMap(version=2).encode()
        with suppress(ConnectionError):
            while True:
                client.send(request * 100)
        assert said(log, "does not read its replies") == 1
    assert serves(node)


def test_unread_replies_are_bounded(node, stranger):
    """As many as a client may pipeline are answered: the system's buffers take them."""
    times = 4 * UNREAD_BEFORE_LOGIN // 9000
    stranger.send(GetErrorMap(version=2).encode() * times)
    for _ in range(times):
        assert stranger.receive().specific == S.SUCCESS


# Shares of addresses


def test_one_address_does_not_take_all_connections(running, log):
    with running(most_connections=6) as node, ExitStack() as stack:
        crowd = [stack.enter_context(connected(node)) for _ in range(3)]
        for client in crowd:
            assert client.status(Noop()) == S.SUCCESS
        for _ in range(2):
            with connected(node) as refused:
                assert refused.ended()
        assert said(log, "127.0.0.1 has 3 of at most 6 connections") == 1
        other = stack.enter_context(connected(node, address="127.0.0.2"))
        assert log_in(other) == S.SUCCESS
        crowd[0].hang_up()
        until(node, lambda: len(node.guests.present) == 3)
        assert log_in(stack.enter_context(connected(node))) == S.SUCCESS
        assert stack.enter_context(connected(node)).ended()


def test_strangers_of_one_address_end_none_of_another(running, monkeypatch):
    monkeypatch.setattr(connection_registry, "MOST_STRANGERS", 8)
    with running() as node, ExitStack() as stack:
        other = stack.enter_context(connected(node, address="127.0.0.2"))
        assert other.status(Noop()) == S.SUCCESS
        crowd = [stack.enter_context(connected(node)) for _ in range(10)]
        for client in crowd[:6]:  # of 8 places, 1 is the other's, and this one holds fewer than are free up to 4
            assert client.ended()
        for client in (*crowd[6:], other):
            assert log_in(client) == S.SUCCESS


def test_each_address_gets_in_where_all_places_are_taken(running, monkeypatch):
    monkeypatch.setattr(connection_registry, "MOST_STRANGERS", 2)
    with running() as node, ExitStack() as stack:
        crowd = [stack.enter_context(connected(node, address=f"127.0.0.{n}")) for n in range(2, 6)]
        assert crowd[0].ended()
        assert crowd[1].ended()
        assert [log_in(client) for client in crowd[2:]] == [S.SUCCESS] * 2


def test_who_does_not_log_in_is_ended(running, log):
    with running(login_timeout=0.3) as node, connected(node) as silent, connected(node) as busy:
        with suppress(EOFError, ConnectionError):
            while True:
                busy.ask(Noop())
        assert silent.ended()
        assert said(log, "no login within 0.3 s") == 2
        assert serves(node)


def test_who_has_logged_in_may_stay(running):
    with running(login_timeout=0.2) as node, connected(node) as user, connected(node) as silent:
        assert log_in(user) == S.SUCCESS
        assert silent.ended()
        assert user.status(Noop()) == S.SUCCESS


@pytest.mark.parametrize("known", [False, True])
def test_a_frame_that_never_ends(running, log, known):
    """However steadily its bytes come."""
    with running(frame_timeout=0.3) as node, connected(node) as slow, connected(node) as other:
        if known:
            assert log_in(slow) == S.SUCCESS
        slow.send(HEADER.pack(Magic.REQUEST, Opcode.NOOP, 0, 0, 0, 0, MAX_BEFORE_LOGIN // 2, 1, 0))
        deadline = time.monotonic() + PATIENCE
        while not select.select([slow.socket], [], [], 0.02)[0]:
            assert time.monotonic() < deadline, "the node listens for ever"
            slow.socket.send(b"x")
        assert slow.ended()
        assert said(log, "a frame that did not end within 0.3 s") == 1
        assert other.status(Noop()) == S.SUCCESS
        assert serves(node)


# Many

CROWD = """
import resource, socket, sys
port, count = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
crowd = []
for _ in range(count):
    one = socket.create_connection(("127.0.0.1", port), 30)
    one.sendall(bytes.fromhex("801f0004000000000000"))  # the beginning of a HELLO
    crowd.append(one)
print("there", flush=True)
sys.stdin.read()
"""


def descriptors(wanted):
    """Let this process open so many files, or as many as it may; return how many connections it can count on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(wanted, hard - 500)


@pytest.mark.process
def test_a_crowd_that_says_half_a_word(running, log):
    """Each of them in another process, so that each side needs one descriptor for each."""
    count = descriptors(HALF_OPEN)
    assert count >= 2000, "this machine lets a process have too few files open"
    with running() as node:
        crowd = [sys.executable, "-c", CROWD, str(node.kv_port), str(count)]
        with subprocess.Popen(crowd, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                assert select.select([process.stdout], [], [], 120)[0], "the crowd did not come in time"
                assert process.stdout.readline() == b"there\n"
                until(node, lambda: node.guests.total >= count)
                assert run(node, lambda: len(node.guests.present)) <= MOST_STRANGERS // 2 + 1
                turned_away = said(log, "it had not logged in")
                assert turned_away >= count - MOST_STRANGERS // 2
                assert serves(node)
            finally:
                process.stdin.close()
        until(node, lambda: not node.guests.present)
        assert serves(node)
    repeated = Counter(record.getMessage() for record in log.records if record.levelno >= logging.WARNING)
    assert not repeated
