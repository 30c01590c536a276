"""How long addresses wait that were wrong."""

import pytest

from penstock.node.login import Attempts, Step
from penstock.node.login.attempts import FORGET_SECONDS, MAX_ADDRESSES
from penstock.wire.constants import Status


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


def delays_of(attempts, address, times):
    found = []
    for _ in range(times):
        found.append(attempts.delay(address))
        attempts.failed(address)
    return found


def test_the_delay_grows_to_five_seconds(attempts):
    assert delays_of(attempts, "10.0.0.1", 10) == [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    assert attempts.delay("10.0.0.2") == 0


def test_success_forgets(attempts):
    delays_of(attempts, "10.0.0.1", 5)
    attempts.succeeded("10.0.0.1")
    assert (attempts.delay("10.0.0.1"), len(attempts)) == (0, 0)
    attempts.succeeded("10.0.0.9")


def test_time_forgets(attempts, clock):
    delays_of(attempts, "10.0.0.1", 9)
    clock.now += FORGET_SECONDS - 1
    assert attempts.delay("10.0.0.1") == 5
    attempts.failed("10.0.0.1")
    clock.now += FORGET_SECONDS
    assert attempts.delay("10.0.0.1") == 0
    assert delays_of(attempts, "10.0.0.1", 2) == [0, 0.05]


def test_a_network_of_ipv6_is_one_address(attempts):
    delays_of(attempts, "2001:db8::1", 2)
    assert attempts.delay("2001:db8::ffff:1") == 0.1
    assert attempts.delay("2001:db8:0:1::1") == 0
    attempts.failed("fe80::1%eth0")
    assert attempts.delay("fe80::2%eth1") == 0.05
    attempts.failed("::ffff:10.0.0.1")
    assert attempts.delay("10.0.0.1") == 0.05
    attempts.failed("a socket")
    assert attempts.delay("a socket") == 0.05


def test_the_oldest_are_forgotten_first(attempts):
    addresses = [f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(MAX_ADDRESSES + 1)]
    for address in addresses[:-1]:
        attempts.failed(address)
    attempts.failed(addresses[0])
    attempts.failed(addresses[-1])
    assert len(attempts) == MAX_ADDRESSES
    assert [attempts.delay(address) for address in (*addresses[:3], addresses[-1])] == [0.1, 0, 0.05, 0.05]


def test_what_counts_as_a_guess(attempts):
    wrong, right = Step(Status.AUTH_ERROR, judged=True), Step(Status.SUCCESS, judged=True)
    said = [Step(Status.AUTH_CONTINUE), Step(Status.AUTH_ERROR), wrong, Step(Status.EINVAL), wrong, wrong, right, right]
    assert [attempts.after(step, "10.0.0.1") for step in said] == [0, 0, 0, 0, 0.05, 0.1, 0.2, 0]
