"""How long guesses wait."""

from itertools import pairwise

import pytest

from penstock.errors import TemporaryFailure
from penstock.node.auth import Attempts, Step
from penstock.node.auth import login_attempts as module
from penstock.node.auth.login_attempts import FORGET_SECONDS, MAX_ACCOUNTS, MOST_QUEUED_SECONDS, NAMES_OF_ADDRESS
from penstock.wire.codec.statuses import Status

ONE, OTHER = "10.0.0.1", "10.0.0.2"
DELAYS = [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def attempts(clock):
    return Attempts(clock)


def fail(attempts, clock, times, address=ONE, account="root"):
    """Guess so many times, each time after the answer; return the seconds until each answer."""
    found = []
    for _ in range(times):
        found.append(round(attempts.judge(address, account, right=False), 6))
        clock.now += found[-1]
    return found


def test_the_delay_grows_to_five_seconds(attempts, clock):
    assert fail(attempts, clock, 10) == DELAYS


def test_another_account_or_another_address_does_not_wait(attempts, clock):
    fail(attempts, clock, 8)
    assert attempts.delay(ONE, "root") == 5
    assert attempts.delay(ONE, "alice") == attempts.delay(OTHER, "root") == 0
    assert attempts.judge(ONE, "alice", right=True) == attempts.judge(OTHER, "root", right=True) == 0
    assert attempts.delay(ONE, "root") == 5  # neither login has reset anything


def test_a_login_waits_as_well_and_forgets(attempts, clock):
    fail(attempts, clock, 4)
    assert round(attempts.judge(ONE, "root", right=True), 6) == 0.4
    assert (attempts.delay(ONE, "root"), len(attempts)) == (0, 0)


def test_guesses_at_the_same_time_queue(attempts):
    """Each is answered after the one before it, as if there were one connection."""
    answered = [attempts.judge(ONE, "root", right=False) for _ in range(8)]
    assert [round(b - a, 6) for a, b in pairwise(answered)] == DELAYS[1:8]


def test_a_queue_that_is_too_long_admits_no_guess(attempts, clock):
    for _ in range(10):
        attempts.admit(ONE, "root")
        attempts.judge(ONE, "root", right=False)
    with pytest.raises(TemporaryFailure, match=r"try again in 15 s"):
        attempts.admit(ONE, "root")
    attempts.admit(ONE, "alice")
    attempts.admit(OTHER, "root")
    clock.now += 5
    attempts.admit(ONE, "root")  # one more is answered by then
    assert attempts.judge(ONE, "root", right=False) < MOST_QUEUED_SECONDS + 5


def test_time_forgets(attempts, clock):
    fail(attempts, clock, 9)
    clock.now += FORGET_SECONDS - 5 - 1
    assert attempts.delay(ONE, "root") == 5
    fail(attempts, clock, 1)
    clock.now += FORGET_SECONDS
    assert attempts.delay(ONE, "root") == 0
    assert fail(attempts, clock, 2) == [0, 0.05]


def test_time_forgets_names_that_nobody_asks_for_again(attempts, clock):
    """They do not count against the names that an address may have."""
    for number in range(NAMES_OF_ADDRESS):
        fail(attempts, clock, 1, account=f"mistyped {number}")
    clock.now += FORGET_SECONDS
    assert fail(attempts, clock, 1, account="alice") == [0]
    assert (attempts.delay(ONE, "bob"), len(attempts)) == (0, 1)


def test_a_network_of_ipv6_is_one_address_and_a_name_has_one_form(attempts, clock):
    fail(attempts, clock, 2, "2001:db8::1", "IX")
    assert attempts.delay("2001:db8::ffff:1", "I\u00adX") == 0.1
    assert attempts.delay("2001:db8:0:1::1", "IX") == 0
    fail(attempts, clock, 1, "::ffff:10.0.0.1", "\u2168")
    assert attempts.delay(ONE, "IX") == 0.05


def test_names_that_nobody_can_have_are_one(attempts, clock):
    fail(attempts, clock, 1, account="n" * 10_000)
    fail(attempts, clock, 1, account="\u0007")
    assert (attempts.delay(ONE, ""), len(attempts)) == (0.1, 1)


def test_one_password_for_many_accounts_is_slow_too(attempts, clock):
    names = [f"user {n}" for n in range(NAMES_OF_ADDRESS + 8)]
    attempts.judge(ONE, "alice", right=True)
    found = [fail(attempts, clock, 1, account=name)[0] for name in names]
    assert found == [0] * NAMES_OF_ADDRESS + DELAYS[:8]
    assert attempts.delay(ONE, "another") == 5
    assert attempts.judge(ONE, "bob", right=True) == 0  # `admit` has let it in
    assert attempts.delay(ONE, "another") == 5
    assert attempts.delay(ONE, "alice") == attempts.delay(ONE, "bob") == 0  # they have logged in from there
    assert attempts.delay(OTHER, "another") == 0
    clock.now += FORGET_SECONDS + 100
    assert fail(attempts, clock, 1, account="another") == [0]


def test_the_oldest_are_forgotten_first(attempts, monkeypatch, clock):
    monkeypatch.setattr(module, "MAX_ACCOUNTS", 20)
    addresses = [f"10.0.0.{n}" for n in range(21)]
    for address in (*addresses[:-1], addresses[0], addresses[-1]):
        attempts.judge(address, "root", right=False)
    assert len(attempts) == 20
    found = [attempts.delay(address, "root") for address in (*addresses[:3], addresses[-1])]
    assert found == [0.1, 0, 0.05, 0.05]


def test_an_attacker_with_many_names_and_addresses_is_remembered_in_part(attempts):
    for n in range(2 * MAX_ACCOUNTS):
        attempts.judge(f"10.{n >> 14}.{n >> 6 & 255}.1", f"user {n}", right=False)
        attempts.judge(f"10.{n >> 14}.{n >> 6 & 255}.1", f"user {n}", right=n % 2 == 0)
    assert len(attempts) <= MAX_ACCOUNTS
    assert len(attempts._known) <= MAX_ACCOUNTS
    assert sum(attempts._names.values()) == len(attempts)


def test_what_counts_as_a_guess(attempts):
    wrong, right = Step(Status.AUTH_ERROR, account="root"), Step(Status.SUCCESS, account="root")
    steps = [Step(Status.AUTH_CONTINUE), Step(Status.AUTH_ERROR), wrong, Step(Status.EINVAL), wrong, right, right]
    assert [round(attempts.after(step, ONE), 6) for step in steps] == [0, 0, 0, 0, 0.05, 0.15, 0]


def test_a_queue_of_just_the_longest_length_admits_one_more(attempts, clock):
    answered = clock.now + [attempts.judge(ONE, "root", right=False) for _ in range(10)][-1]
    clock.now = answered - MOST_QUEUED_SECONDS
    attempts.admit(ONE, "root")
    clock.now -= 0.5
    with pytest.raises(TemporaryFailure):
        attempts.admit(ONE, "root")


def test_failures_are_forgotten_at_the_second_and_cost_nothing_from_then_on(attempts, clock):
    attempts.judge(ONE, "root", right=False)
    clock.now += FORGET_SECONDS - 0.5
    assert (attempts.delay(ONE, "root"), len(attempts)) == (0.05, 1)
    clock.now += 0.5
    assert (attempts.delay(ONE, "root"), len(attempts), len(attempts._names)) == (0, 0, 0)


def test_an_account_that_is_forgotten_leaves_its_place_to_another(attempts, monkeypatch):
    monkeypatch.setattr(module, "NAMES_OF_ADDRESS", 1)
    attempts.judge(ONE, "first", right=False)
    attempts.judge(ONE, "first", right=True)
    attempts.judge(ONE, "second", right=False)
    assert (attempts.delay(ONE, "second"), attempts.delay(ONE, "third")) == (0.05, 0)


def test_of_accounts_that_have_logged_in_the_newest_are_known(attempts, monkeypatch):
    monkeypatch.setattr(module, "NAMES_OF_ADDRESS", 0)
    monkeypatch.setattr(module, "MAX_ACCOUNTS", 2)
    for name in ("a", "b"):
        attempts.judge(ONE, name, right=True)
    attempts.judge(ONE, "stranger", right=False)
    assert [attempts.delay(ONE, name) for name in ("a", "b", "c")] == [0, 0, 0.05]
    attempts.judge(ONE, "c", right=True)
    assert [attempts.delay(ONE, name) for name in ("a", "b", "c")] == [0.05, 0, 0]
