"""Passwords that wait to be checked: whose turn it is, how many there may be, and that others are served meanwhile."""

import asyncio
import threading
from contextlib import ExitStack
from functools import partial

import pytest

from penstock.client.login import MAX_ITERATIONS
from penstock.errors import TemporaryFailure
from penstock.node import Node, passwords
from penstock.node.login import User
from penstock.node.login.attempts import MOST_SECONDS
from penstock.node.login.users import account_of
from penstock.node.login.users_file import change_users
from penstock.node.passwords import Passwords
from penstock.wire.constants import Status
from penstock.wire.kv import Get
from penstock.wire.login import SaslAuth
from tests.node.watch import run
from tests.node.wire_client import SECONDS, connected

S = Status


@pytest.fixture
def users(tmp_path):
    path = tmp_path / "users.json"
    with change_users(path) as accounts:
        accounts["alice"] = account_of(User.of("alice", ["admin"]), "wonderland")
    return path


def ask_in_order(asked, close=False):
    """Let addresses ask, while the first of them is being checked; return in which order they were answered."""
    checked, gate = [], threading.Event()

    def check(address, number):
        gate.wait(SECONDS)
        checked.append((address, number))
        return number % 2 == 0

    async def work():
        waiting = Passwords(asyncio.get_running_loop())
        try:
            answers = [waiting.ask(address, partial(check, address, n)) for n, address in enumerate(asked)]
            gate.set()
            if close:
                waiting.close()
            return await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), SECONDS)
        finally:
            gate.set()
            waiting.close()

    return asyncio.run(work()), checked


def test_each_address_has_its_turn():
    answers, checked = ask_in_order("aaaabbc")
    assert [address for address, _ in checked] == list("aabcaba")
    assert [number for address, number in checked if address == "a"] == [0, 1, 2, 3]
    assert answers == [True, False, True, False, True, False, True]


def test_none_is_checked_once_it_is_closed():
    answers, checked = ask_in_order("abc", close=True)
    assert len(checked) == 1  # which was under way
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[1:])


def test_too_many_are_refused(monkeypatch):
    monkeypatch.setattr(passwords, "MOST_OF_ONE", 2)
    monkeypatch.setattr(passwords, "MOST_WAITING", 3)
    for asked, refused in (("aaa", False), ("aaaa", True), ("aaabc", True), ("aaab", False)):
        if refused:
            with pytest.raises(TemporaryFailure):
                ask_in_order(asked)
        else:
            ask_in_order(asked)


def test_who_has_gone_is_not_waited_for():
    async def work():
        waiting, gate, asked = Passwords(asyncio.get_running_loop()), threading.Event(), threading.Event()

        def check():
            asked.set()
            return True

        try:
            first = waiting.ask("a", lambda: gate.wait(SECONDS))
            gone = waiting.ask("b", check)
            last = waiting.ask("c", lambda: not asked.is_set())
            gone.cancel()
            gate.set()
            return await asyncio.wait_for(asyncio.gather(first, last), SECONDS)
        finally:
            waiting.close()

    assert asyncio.run(work()) == [True, True]


def test_others_are_served_while_passwords_are_checked(tmp_path):
    """Twenty guesses take the checking thread some seconds. Nobody else waits for more than a few of them."""
    with change_users(tmp_path / "users.json") as accounts:
        accounts["alice"] = account_of(User.of("alice", ["admin"]), "wonderland", MAX_ITERATIONS)
    with ExitStack() as stack:
        node = stack.enter_context(
            Node.running(["default"], vbuckets=1, users=tmp_path / "users.json", allow_plain=True)
        )
        known, *guesses = [stack.enter_context(connected(node)) for _ in range(21)]
        assert known.status(SaslAuth(key=b"PLAIN", value=b"\0alice\0wonderland")) == S.SUCCESS
        for number, guess in enumerate(guesses):
            guess.send(SaslAuth(key=b"PLAIN", value=b"\0alice\0guess %d" % number))
        assert run(node, lambda: node.guests.total) == 21
        assert known.set(b"k", b"v").specific == S.SUCCESS
        assert run(node, lambda: node.attempts.delay("127.0.0.1")) < MOST_SECONDS  # not all are known to be wrong yet


def test_the_right_password_and_the_wrong_one(users):
    with Node.running(vbuckets=1, users=users, allow_plain=True) as node, connected(node) as client:
        for password, status in ((b"wonderland", S.SUCCESS), (b"looking-glass", S.AUTH_ERROR), (b"", S.AUTH_ERROR)):
            assert client.status(SaslAuth(key=b"PLAIN", value=b"\0alice\0" + password)) == status
            assert client.status(Get(key=b"k")) == (S.KEY_ENOENT if status == S.SUCCESS else S.EACCESS)
        assert client.status(SaslAuth(key=b"PLAIN", value=b"\0alice\0wonderland")) == S.SUCCESS  # it is known by now
