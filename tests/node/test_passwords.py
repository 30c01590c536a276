"""Passwords that wait to be checked: whose turn it is, how many there may be, and that others are served meanwhile."""

import asyncio
import threading
import time
from base64 import b64encode
from contextlib import ExitStack
from functools import partial
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from penstock.errors import TemporaryFailure
from penstock.node import Node
from penstock.node.auth import LoginAttempts, User, password_checks
from penstock.node.auth.login_attempts import MAX_SECONDS
from penstock.node.auth.password_checks import PasswordChecker
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Get
from penstock.wire.messages.sasl import SaslAuth, SaslStep
from penstock.wire.values.scram import MAX_ITERATIONS
from tests.node.watch import run
from tests.node.wire_client import connected
from tests.patience import PATIENCE
from tests.waiting import wait_readable

S = Status


@pytest.fixture
def users(tmp_path):
    path = tmp_path / "users.json"
    with change_users(path) as accounts:
        accounts["alice"] = make_account(User.from_texts("alice", ["admin"]), "wonderland")
    return path


def ask_in_order(asked, close=False, attempts=None):
    """Let addresses ask, while the first of them is being checked; return in which order they were answered.

    asked: an address and an account for each, or the address alone.
    """
    checked, gate = [], threading.Event()

    def check(address, number):
        gate.wait(PATIENCE)
        checked.append((address, number))
        return number % 2 == 0

    async def work():
        loop = asyncio.get_running_loop()
        waiting = PasswordChecker(loop, attempts or LoginAttempts(loop.time))
        try:
            answers = [waiting.check(who[0], who[1:], partial(check, who, n)) for n, who in enumerate(asked)]
            gate.set()
            if close:
                waiting.close()
            return await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), PATIENCE)
        finally:
            gate.set()
            waiting.close()

    return asyncio.run(work()), checked


def test_addresses_take_turns():
    answers, checked = ask_in_order("aaaabbc")
    assert [address for address, _ in checked] == list("aabcaba")
    assert [number for address, number in checked if address == "a"] == [0, 1, 2, 3]
    assert answers == [True, False, True, False, True, False, True]


def test_accounts_of_an_address_take_turns():
    _, checked = ask_in_order(["a1", "a1", "a1", "b1", "a2", "a2", "b1"])
    assert [who for who, _ in checked] == ["a1", "a1", "b1", "a2", "b1", "a1", "a2"]


def test_guesses_with_full_queues_are_not_checked():
    """Those that were asked while there was room, too: the ones before them were wrong meanwhile."""

    async def work():
        loop = asyncio.get_running_loop()
        attempts = LoginAttempts(loop.time)
        waiting = PasswordChecker(loop, attempts)

        def wrong():
            for _ in range(10):
                loop.call_soon_threadsafe(partial(attempts.record, "a", "root", is_right=False))
            return False

        try:
            answers = [waiting.check("a", "root", wrong), waiting.check("a", "root", lambda: True)]
            answers.append(waiting.check("a", "alice", lambda: True))
            found = await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), PATIENCE)
            with pytest.raises(TemporaryFailure, match="too many wrong passwords from a"):
                waiting.check("a", "root", lambda: True)
            return found
        finally:
            waiting.close()

    first, second, alice = asyncio.run(work())
    assert (first, type(second), alice) == (False, TemporaryFailure, True)


def test_closed_checker_checks_no_password():
    answers, checked = ask_in_order("abc", close=True)
    assert len(checked) == 1  # which was under way
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[1:])


def test_number_of_waiting_passwords_has_a_limit(monkeypatch):
    monkeypatch.setattr(password_checks, "MAX_WAITING_OF_ADDRESS", 2)
    monkeypatch.setattr(password_checks, "MAX_WAITING", 3)
    for asked, refused in (("aaa", False), ("aaaa", True), ("aaabc", True), ("aaab", False)):
        if refused:
            with pytest.raises(TemporaryFailure):
                ask_in_order(asked)
        else:
            ask_in_order(asked)


def test_cancelled_check_is_skipped():
    async def work():
        loop = asyncio.get_running_loop()
        waiting, gate, asked = PasswordChecker(loop, LoginAttempts(loop.time)), threading.Event(), threading.Event()

        def check():
            asked.set()
            return True

        try:
            first = waiting.check("a", "", lambda: gate.wait(PATIENCE))
            gone = waiting.check("b", "", check)
            last = waiting.check("c", "", lambda: not asked.is_set())
            gone.cancel()
            gate.set()
            return await asyncio.wait_for(asyncio.gather(first, last), PATIENCE)
        finally:
            waiting.close()

    assert asyncio.run(work()) == [True, True]


@pytest.mark.long
def test_other_clients_are_served_during_password_checks(tmp_path):
    """Twenty guesses take the checking thread some seconds. Nobody else waits for more than a few of them."""
    with change_users(tmp_path / "users.json") as accounts:
        accounts["alice"] = make_account(User.from_texts("alice", ["admin"]), "wonderland", MAX_ITERATIONS)
    with ExitStack() as stack:
        node = stack.enter_context(
            Node.running(["default"], vbuckets=1, users=tmp_path / "users.json", allow_plain=True)
        )
        known, *guesses = [stack.enter_context(connected(node)) for _ in range(21)]
        assert known.status(SaslAuth(key=b"PLAIN", value=b"\0alice\0wonderland")) == S.SUCCESS
        for number, guess in enumerate(guesses):
            guess.send(SaslAuth(key=b"PLAIN", value=b"\0alice\0guess %d" % number))
        assert run(node, lambda: node.connections.total) == 21
        assert known.set(b"k", b"v").specific == S.SUCCESS
        assert (
            run(node, lambda: node.attempts.get_delay("127.0.0.1", "alice")) < MAX_SECONDS
        )  # not all are known to be wrong yet


def test_plain_login_checks_the_password(users):
    with Node.running(vbuckets=1, users=users, allow_plain=True) as node, connected(node) as client:
        for password, status in ((b"wonderland", S.SUCCESS), (b"looking-glass", S.AUTH_ERROR), (b"", S.AUTH_ERROR)):
            assert client.status(SaslAuth(key=b"PLAIN", value=b"\0alice\0" + password)) == status
            assert client.status(Get(key=b"k")) == (S.KEY_ENOENT if status == S.SUCCESS else S.EACCESS)
        assert client.status(SaslAuth(key=b"PLAIN", value=b"\0alice\0wonderland")) == S.SUCCESS  # it is known by now


# Guesses, over sockets

SCRAM_FIRST = SaslAuth(key=b"SCRAM-SHA256", value=b"n,,n=root,r=N")


def refused_before(node, times, account="root"):
    """Count so many wrong passwords from 127.0.0.1, as if connections that have left had sent them."""
    for _ in range(times):
        run(node, lambda: node.attempts.record("127.0.0.1", account, is_right=False))


def scram_guess(client):
    """Send what proves nothing, up to where the answer waits."""
    challenge = client.ask(SCRAM_FIRST)
    assert challenge.specific == S.AUTH_CONTINUE
    nonce = challenge.value.split(b",")[0]
    client.send(SaslStep(key=b"SCRAM-SHA256", value=b"c=biws,%s,p=%s" % (nonce, b64encode(bytes(32)))))


@pytest.mark.parametrize(
    "scram", [pytest.param(False, id="PLAIN"), pytest.param(True, id="SCRAM", marks=pytest.mark.long)]
)
def test_concurrent_guesses_are_queued_apart_from_other_logins(users, scram):
    """The guesses' answers are at least as late as they would be on one connection; the login comes before them."""
    with Node.running(vbuckets=1, users=users, allow_plain=True) as node, ExitStack() as stack:
        crowd = [stack.enter_context(connected(node)) for _ in range(6)]
        started = time.monotonic()
        for client in crowd:
            if scram:
                scram_guess(client)
            else:
                client.send(SaslAuth(key=b"PLAIN", value=b"\0root\0guess"))
        innocent = stack.enter_context(connected(node))
        assert innocent.status(SaslAuth(key=b"PLAIN", value=b"\0alice\0wonderland")) == S.SUCCESS
        assert wait_readable([crowd[-1].socket], 0) == []
        for client in crowd:
            assert client.receive().specific == S.AUTH_ERROR
        assert time.monotonic() - started >= 0.05 + 0.1 + 0.2 + 0.4 + 0.8
        assert run(node, lambda: node.attempts.get_delay("127.0.0.1", "root")) == 1.6  # the login has reset nothing


@pytest.mark.parametrize("scram", [False, True], ids=["PLAIN", "SCRAM"])
def test_full_queue_refuses_a_guess(users, scram):
    with Node.running(vbuckets=1, users=users, allow_plain=True) as node, connected(node) as client:
        refused_before(node, 10)
        if scram:
            scram_guess(client)
            assert client.receive().specific == S.ETMPFAIL
        else:
            assert client.status(SaslAuth(key=b"PLAIN", value=b"\0root\0guess")) == S.ETMPFAIL
        assert client.status(SaslAuth(key=b"PLAIN", value=b"\0alice\0wonderland")) == S.SUCCESS


def test_http_and_kv_guesses_are_counted_together(users):
    with Node.running(vbuckets=1, users=users, allow_plain=True) as node:
        url = f"http://{node.host}:{node.http_port}/pools/default"

        def ask(user, password):
            request = Request(
                url, headers={"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}
            )
            try:
                with urlopen(request, timeout=PATIENCE) as answer:
                    return answer.status
            except HTTPError as error:
                with error:
                    return error.code

        assert [ask("root", "guess"), ask("alice", "wonderland")] == [401, 200]
        assert run(node, lambda: node.attempts.get_delay("127.0.0.1", "root")) == 0.05
        with connected(node) as client:
            assert client.status(SaslAuth(key=b"PLAIN", value=b"\0root\0guess")) == S.AUTH_ERROR
        assert run(node, lambda: node.attempts.get_delay("127.0.0.1", "root")) == 0.1
        refused_before(node, 8)
        assert [ask("root", "guess"), ask("alice", "wonderland")] == [503, 200]
