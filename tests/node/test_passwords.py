"""Queue of password checks: its order and limits, and that the node serves other clients meanwhile."""

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


def check_passwords(asked, close=False, attempts=None):
    """Queue password checks while the first check is running.

    Args:
        asked: for each check, a letter for the address and the rest for the account.
        close: close the checker before the first check ends.
        attempts: failures so far, by default none.

    Returns:
        The result of each check, and (place, number) of the checks in the order of their execution.
    """
    checked, gate = [], threading.Event()

    def check(address, number):
        gate.wait(PATIENCE)
        checked.append((address, number))
        return number % 2 == 0

    async def run_checks():
        loop = asyncio.get_running_loop()
        checker = PasswordChecker(loop, attempts or LoginAttempts(loop.time))
        try:
            answers = [checker.check(place[0], place[1:], partial(check, place, n)) for n, place in enumerate(asked)]
            gate.set()
            if close:
                checker.close()
            return await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), PATIENCE)
        finally:
            gate.set()
            checker.close()

    return asyncio.run(run_checks()), checked


def test_addresses_take_turns():
    answers, checked = check_passwords("aaaabbc")
    assert [address for address, _ in checked] == list("aabcaba")
    assert [number for address, number in checked if address == "a"] == [0, 1, 2, 3]
    assert answers == [True, False, True, False, True, False, True]


def test_accounts_of_an_address_take_turns():
    _, checked = check_passwords(["a1", "a1", "a1", "b1", "a2", "a2", "b1"])
    assert [place for place, _ in checked] == ["a1", "a1", "b1", "a2", "b1", "a1", "a2"]


def test_guesses_with_full_queues_are_not_checked():
    """This includes guesses that were queued while there was room, before earlier guesses were wrong."""

    async def run_checks():
        loop = asyncio.get_running_loop()
        attempts = LoginAttempts(loop.time)
        checker = PasswordChecker(loop, attempts)

        def wrong():
            for _ in range(10):
                loop.call_soon_threadsafe(partial(attempts.record, "a", "root", is_right=False))
            return False

        try:
            answers = [checker.check("a", "root", wrong), checker.check("a", "root", lambda: True)]
            answers.append(checker.check("a", "alice", lambda: True))
            found = await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), PATIENCE)
            with pytest.raises(TemporaryFailure, match="too many wrong passwords from a"):
                checker.check("a", "root", lambda: True)
            return found
        finally:
            checker.close()

    first, second, alice = asyncio.run(run_checks())
    assert (first, type(second), alice) == (False, TemporaryFailure, True)


def test_closed_checker_checks_no_password():
    answers, checked = check_passwords("abc", close=True)
    assert len(checked) == 1  # the check that was running
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[1:])


def test_number_of_waiting_passwords_has_a_limit(monkeypatch):
    monkeypatch.setattr(password_checks, "MAX_WAITING_OF_ADDRESS", 2)
    monkeypatch.setattr(password_checks, "MAX_WAITING", 3)
    for asked, refused in (("aaa", False), ("aaaa", True), ("aaabc", True), ("aaab", False)):
        if refused:
            with pytest.raises(TemporaryFailure):
                check_passwords(asked)
        else:
            check_passwords(asked)


def test_cancelled_check_is_skipped():
    async def run_checks():
        loop = asyncio.get_running_loop()
        checker, gate, asked = PasswordChecker(loop, LoginAttempts(loop.time)), threading.Event(), threading.Event()

        def check():
            asked.set()
            return True

        try:
            first = checker.check("a", "", lambda: gate.wait(PATIENCE))
            cancelled = checker.check("b", "", check)
            last = checker.check("c", "", lambda: not asked.is_set())
            cancelled.cancel()
            gate.set()
            return await asyncio.wait_for(asyncio.gather(first, last), PATIENCE)
        finally:
            checker.close()

    assert asyncio.run(run_checks()) == [True, True]


@pytest.mark.long
def test_other_clients_are_served_during_password_checks(tmp_path):
    """Twenty guesses take the checking thread some seconds. No other client waits for more than a few of them."""
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
        # Not all guesses were checked yet.
        assert run(node, lambda: node.attempts.get_delay("127.0.0.1", "alice")) < MAX_SECONDS


def test_plain_login_checks_the_password(users):
    with Node.running(vbuckets=1, users=users, allow_plain=True) as node, connected(node) as client:
        for password, status in ((b"wonderland", S.SUCCESS), (b"looking-glass", S.AUTH_ERROR), (b"", S.AUTH_ERROR)):
            assert client.status(SaslAuth(key=b"PLAIN", value=b"\0alice\0" + password)) == status
            assert client.status(Get(key=b"k")) == (S.KEY_ENOENT if status == S.SUCCESS else S.EACCESS)
        remembered = SaslAuth(key=b"PLAIN", value=b"\0alice\0wonderland")
        assert client.status(remembered) == S.SUCCESS


# Guesses over sockets

SCRAM_FIRST = SaslAuth(key=b"SCRAM-SHA256", value=b"n,,n=root,r=N")


def count_wrong_passwords(node, times, account="root"):
    """Count wrong passwords from 127.0.0.1, as if closed connections had sent them."""
    for _ in range(times):
        run(node, lambda: node.attempts.record("127.0.0.1", account, is_right=False))


def send_scram_guess(client):
    """Send a SCRAM exchange with a wrong proof, up to the message whose answer is delayed."""
    challenge = client.ask(SCRAM_FIRST)
    assert challenge.specific == S.AUTH_CONTINUE
    nonce = challenge.value.split(b",")[0]
    client.send(SaslStep(key=b"SCRAM-SHA256", value=b"c=biws,%s,p=%s" % (nonce, b64encode(bytes(32)))))


@pytest.mark.parametrize(
    "scram", [pytest.param(False, id="PLAIN"), pytest.param(True, id="SCRAM", marks=pytest.mark.long)]
)
def test_concurrent_guesses_are_queued_apart_from_other_logins(users, scram):
    """The guesses are answered as late as on one connection, and the right password before them."""
    with Node.running(vbuckets=1, users=users, allow_plain=True) as node, ExitStack() as stack:
        guessing = [stack.enter_context(connected(node)) for _ in range(6)]
        started = time.monotonic()
        for client in guessing:
            if scram:
                send_scram_guess(client)
            else:
                client.send(SaslAuth(key=b"PLAIN", value=b"\0root\0guess"))
        other = stack.enter_context(connected(node))
        assert other.status(SaslAuth(key=b"PLAIN", value=b"\0alice\0wonderland")) == S.SUCCESS
        assert wait_readable([guessing[-1].socket], 0) == []
        for client in guessing:
            assert client.receive().specific == S.AUTH_ERROR
        assert time.monotonic() - started >= 0.05 + 0.1 + 0.2 + 0.4 + 0.8
        # The login of alice has not reset the count of root.
        assert run(node, lambda: node.attempts.get_delay("127.0.0.1", "root")) == 1.6


@pytest.mark.parametrize("scram", [False, True], ids=["PLAIN", "SCRAM"])
def test_full_queue_refuses_a_guess(users, scram):
    with Node.running(vbuckets=1, users=users, allow_plain=True) as node, connected(node) as client:
        count_wrong_passwords(node, 10)
        if scram:
            send_scram_guess(client)
            assert client.receive().specific == S.ETMPFAIL
        else:
            assert client.status(SaslAuth(key=b"PLAIN", value=b"\0root\0guess")) == S.ETMPFAIL
        assert client.status(SaslAuth(key=b"PLAIN", value=b"\0alice\0wonderland")) == S.SUCCESS


def test_http_and_kv_guesses_are_counted_together(users):
    with Node.running(vbuckets=1, users=users, allow_plain=True) as node:
        url = f"http://{node.host}:{node.http_port}/pools/default"

        def request_page(user, password):
            request = Request(
                url, headers={"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}
            )
            try:
                with urlopen(request, timeout=PATIENCE) as answer:
                    return answer.status
            except HTTPError as error:
                with error:
                    return error.code

        assert [request_page("root", "guess"), request_page("alice", "wonderland")] == [401, 200]
        assert run(node, lambda: node.attempts.get_delay("127.0.0.1", "root")) == 0.05
        with connected(node) as client:
            assert client.status(SaslAuth(key=b"PLAIN", value=b"\0root\0guess")) == S.AUTH_ERROR
        assert run(node, lambda: node.attempts.get_delay("127.0.0.1", "root")) == 0.1
        count_wrong_passwords(node, 8)
        assert [request_page("root", "guess"), request_page("alice", "wonderland")] == [503, 200]
