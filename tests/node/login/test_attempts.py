"""Delays of logins after wrong passwords, by account and address."""

import heapq
from itertools import pairwise

import pytest

from penstock.errors import TemporaryFailure
from penstock.node.auth import LoginAttempts, LoginStep
from penstock.node.auth import login_attempts as module
from penstock.node.auth.login_attempts import FORGET_SECONDS, MAX_ACCOUNTS, MAX_NAMES_OF_ADDRESS, MAX_QUEUED_SECONDS
from penstock.wire.codec.statuses import Status

ONE, OTHER = "10.0.0.1", "10.0.0.2"
DELAYS = [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]


class Clock:
    """Clock that a test sets."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def attempts(clock):
    return LoginAttempts(clock)


def guess_wrong(attempts, clock, times, address=ONE, account="root"):
    """Guess `times` wrong passwords, each after the previous answer, and return the seconds until each answer."""
    found = []
    for _ in range(times):
        found.append(round(attempts.record(address, account, is_right=False), 6))
        clock.now += found[-1]
    return found


def test_delay_grows_to_five_seconds(attempts, clock):
    assert guess_wrong(attempts, clock, 10) == DELAYS


def test_other_accounts_and_addresses_do_not_wait(attempts, clock):
    guess_wrong(attempts, clock, 8)
    assert attempts.get_delay(ONE, "root") == 5
    assert attempts.get_delay(ONE, "alice") == attempts.get_delay(OTHER, "root") == 0
    assert attempts.record(ONE, "alice", is_right=True) == attempts.record(OTHER, "root", is_right=True) == 0
    assert attempts.get_delay(ONE, "root") == 5  # neither login has reset anything


def test_right_password_waits_and_resets_the_count(attempts, clock):
    guess_wrong(attempts, clock, 4)
    assert round(attempts.record(ONE, "root", is_right=True), 6) == 0.4
    assert (attempts.get_delay(ONE, "root"), len(attempts)) == (0, 0)


def test_concurrent_guesses_are_queued(attempts):
    """Each guess is answered after the previous guess, as if all came over one connection."""
    answered = [attempts.record(ONE, "root", is_right=False) for _ in range(8)]
    assert [round(b - a, 6) for a, b in pairwise(answered)] == DELAYS[1:8]


def test_full_queue_refuses_guesses(attempts, clock):
    for _ in range(10):
        attempts.check_queue(ONE, "root")
        attempts.record(ONE, "root", is_right=False)
    with pytest.raises(TemporaryFailure, match=r"try again in 15 s"):
        attempts.check_queue(ONE, "root")
    attempts.check_queue(ONE, "alice")
    attempts.check_queue(OTHER, "root")
    clock.now += 5
    attempts.check_queue(ONE, "root")  # one guess was answered meanwhile
    assert attempts.record(ONE, "root", is_right=False) < MAX_QUEUED_SECONDS + 5


def test_old_failures_are_forgotten(attempts, clock):
    guess_wrong(attempts, clock, 9)
    clock.now += FORGET_SECONDS - 5 - 1
    assert attempts.get_delay(ONE, "root") == 5
    guess_wrong(attempts, clock, 1)
    clock.now += FORGET_SECONDS
    assert attempts.get_delay(ONE, "root") == 0
    assert guess_wrong(attempts, clock, 2) == [0, 0.05]


def test_old_failures_of_unused_names_are_forgotten(attempts, clock):
    """Forgotten names do not count towards the limit of names per address."""
    for number in range(MAX_NAMES_OF_ADDRESS):
        guess_wrong(attempts, clock, 1, account=f"mistyped {number}")
    clock.now += FORGET_SECONDS
    assert guess_wrong(attempts, clock, 1, account="alice") == [0]
    assert (attempts.get_delay(ONE, "bob"), len(attempts)) == (0, 1)


def test_ipv6_network_and_normalized_name_share_a_count(attempts, clock):
    guess_wrong(attempts, clock, 2, "2001:db8::1", "IX")
    assert attempts.get_delay("2001:db8::ffff:1", "I\u00adX") == 0.1
    assert attempts.get_delay("2001:db8:0:1::1", "IX") == 0
    guess_wrong(attempts, clock, 1, "::ffff:10.0.0.1", "\u2168")
    assert attempts.get_delay(ONE, "IX") == 0.05


def test_impossible_names_share_a_count(attempts, clock):
    guess_wrong(attempts, clock, 1, account="n" * 10_000)
    guess_wrong(attempts, clock, 1, account="\u0007")
    assert (attempts.get_delay(ONE, ""), len(attempts)) == (0.1, 1)


def test_one_password_for_many_accounts_is_slowed_down(attempts, clock):
    names = [f"user {n}" for n in range(MAX_NAMES_OF_ADDRESS + 8)]
    attempts.record(ONE, "alice", is_right=True)
    found = [guess_wrong(attempts, clock, 1, account=name)[0] for name in names]
    assert found == [0] * MAX_NAMES_OF_ADDRESS + DELAYS[:8]
    assert attempts.get_delay(ONE, "another") == 5
    assert attempts.record(ONE, "bob", is_right=True) == 0  # check_queue delays names without a count of their own
    assert attempts.get_delay(ONE, "another") == 5
    assert attempts.get_delay(ONE, "alice") == attempts.get_delay(ONE, "bob") == 0  # both logged in from there
    assert attempts.get_delay(OTHER, "another") == 0
    clock.now += FORGET_SECONDS + 100
    assert guess_wrong(attempts, clock, 1, account="another") == [0]


def test_oldest_failures_are_forgotten_first(attempts, monkeypatch, clock):
    monkeypatch.setattr(module, "MAX_ACCOUNTS", 20)
    addresses = [f"10.0.0.{n}" for n in range(21)]
    for address in (*addresses[:-1], addresses[0], addresses[-1]):
        attempts.record(address, "root", is_right=False)
    assert len(attempts) == 20
    found = [attempts.get_delay(address, "root") for address in (*addresses[:3], addresses[-1])]
    assert found == [0.1, 0, 0.05, 0.05]


def test_number_of_remembered_failures_has_a_limit(attempts):
    for n in range(2 * MAX_ACCOUNTS):
        attempts.record(f"10.{n >> 14}.{n >> 6 & 255}.1", f"user {n}", is_right=False)
        attempts.record(f"10.{n >> 14}.{n >> 6 & 255}.1", f"user {n}", is_right=n % 2 == 0)
    assert len(attempts) <= MAX_ACCOUNTS
    assert len(attempts._logged_in) <= MAX_ACCOUNTS
    assert sum(attempts._names.values()) == len(attempts)


def test_only_steps_that_name_an_account_are_counted(attempts):
    wrong, right = LoginStep(Status.AUTH_ERROR, account="root"), LoginStep(Status.SUCCESS, account="root")
    steps = [
        LoginStep(Status.AUTH_CONTINUE),
        LoginStep(Status.AUTH_ERROR),
        wrong,
        LoginStep(Status.EINVAL),
        wrong,
        right,
        right,
    ]
    assert [round(attempts.record_step(step, ONE), 6) for step in steps] == [0, 0, 0, 0, 0.05, 0.15, 0]


def test_queue_at_its_limit_admits_one_guess(attempts, clock):
    answered = clock.now + [attempts.record(ONE, "root", is_right=False) for _ in range(10)][-1]
    clock.now = answered - MAX_QUEUED_SECONDS
    attempts.check_queue(ONE, "root")
    clock.now -= 0.5
    with pytest.raises(TemporaryFailure):
        attempts.check_queue(ONE, "root")


def test_failures_are_forgotten_exactly_after_the_period(attempts, clock):
    attempts.record(ONE, "root", is_right=False)
    clock.now += FORGET_SECONDS - 0.5
    assert (attempts.get_delay(ONE, "root"), len(attempts)) == (0.05, 1)
    clock.now += 0.5
    assert (attempts.get_delay(ONE, "root"), len(attempts), len(attempts._names)) == (0, 0, 0)


def test_forgotten_account_leaves_its_place_to_another(attempts, monkeypatch):
    monkeypatch.setattr(module, "MAX_NAMES_OF_ADDRESS", 1)
    attempts.record(ONE, "first", is_right=False)
    attempts.record(ONE, "first", is_right=True)
    attempts.record(ONE, "second", is_right=False)
    assert (attempts.get_delay(ONE, "second"), attempts.get_delay(ONE, "third")) == (0.05, 0)


def test_newest_logins_are_remembered(attempts, monkeypatch):
    monkeypatch.setattr(module, "MAX_NAMES_OF_ADDRESS", 0)
    monkeypatch.setattr(module, "MAX_ACCOUNTS", 2)
    for name in ("a", "b"):
        attempts.record(ONE, name, is_right=True)
    attempts.record(ONE, "unknown", is_right=False)
    assert [attempts.get_delay(ONE, name) for name in ("a", "b", "c")] == [0, 0, 0.05]
    attempts.record(ONE, "c", is_right=True)
    assert [attempts.get_delay(ONE, name) for name in ("a", "b", "c")] == [0.05, 0, 0]


def guess_from_everywhere(attempts, clock, addresses, seconds, account="root"):
    """Let each address guess, each time after its answer or refusal, and return the number of checked guesses."""
    checked, begin = 0, clock.now
    waiting = [(clock.now, address) for address in addresses]
    heapq.heapify(waiting)
    while waiting[0][0] < begin + seconds:
        clock.now, address = heapq.heappop(waiting)
        try:
            attempts.check_queue(address, account)
        except TemporaryFailure:
            heapq.heappush(waiting, (clock.now + 0.1, address))
            continue
        checked += 1
        heapq.heappush(waiting, (clock.now + attempts.record(address, account, is_right=False), address))
    return checked


@pytest.mark.parametrize("number", [1, 2, 10, 60, 1000])
def test_many_addresses_guess_hardly_faster_than_few(attempts, clock, number):
    addresses = [f"10.1.{n // 250}.{n % 250}" for n in range(number)]
    assert guess_from_everywhere(attempts, clock, addresses, 10) <= 46
    assert guess_from_everywhere(attempts, clock, addresses, 100) <= 101  # each of both counts: one guess in 2 s


def test_owner_is_not_delayed_at_a_known_address_and_hardly_at_a_new_one(attempts, clock):
    attempts.record(ONE, "root", is_right=True)
    guess_from_everywhere(attempts, clock, [f"10.1.0.{n}" for n in range(60)], 120)
    attempts.check_queue(ONE, "root")
    assert attempts.record(ONE, "root", is_right=True) == 0
    attempts.check_queue(OTHER, "root")  # behind the first guess of new addresses only
    assert attempts.record(OTHER, "root", is_right=True) <= module.MAX_SHARED_SECONDS
    assert attempts.record(OTHER, "root", is_right=True) == 0  # known from now on


def test_guesses_of_many_addresses_do_not_delay_another_account(attempts, clock):
    guess_from_everywhere(attempts, clock, [f"10.1.0.{n}" for n in range(60)], 60)
    assert attempts.record(OTHER, "alice", is_right=False) == 0


def test_number_of_shared_counts_has_a_limit(attempts, monkeypatch):
    monkeypatch.setattr(module, "MAX_ACCOUNTS", 20)
    for n in range(100):
        attempts.record(f"10.1.0.{n}", f"user {n}", is_right=False)
    assert len(attempts._shared) <= 20


def test_shared_counts_are_forgotten(attempts, clock):
    for n in range(20):
        attempts.record(f"10.1.0.{n}", "root", is_right=False)
    assert attempts.record(OTHER, "root", is_right=False) > 0
    clock.now += FORGET_SECONDS
    assert attempts.record("10.1.1.1", "root", is_right=False) == 0
    assert len(attempts._shared) == 1
