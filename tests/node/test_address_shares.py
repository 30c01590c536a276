"""How places are shared out between addresses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.node.transport.address_shares import AddressShares, network_of


def take_all(shares, addresses):
    """Let addresses take places in turn until none gets one more; return what each of them holds."""
    while sum(shares.take(address) for address in addresses):  # all of them, in every round
        continue
    return [shares.held(address) for address in addresses]


@pytest.mark.parametrize(
    ("places", "count", "each"),
    [(60_000, 1, 30_000), (512, 1, 256), (300, 2, 100), (1000, 9, 100), (1, 1, 1), (3, 1, 2), (0, 1, 0)],
)
def test_addresses_get_equal_shares(places, count, each):
    assert take_all(AddressShares(places), [f"10.0.0.{n}" for n in range(count)]) == [each] * count


def test_an_address_that_came_first_leaves_room():
    shares = AddressShares(100)
    assert take_all(shares, ["10.0.0.1"]) == [50]
    assert take_all(shares, ["10.0.0.2"]) == [25]
    assert shares.take("10.0.0.3")
    assert not shares.take("10.0.0.1")


def test_a_place_that_is_given_back_can_be_taken():
    shares = AddressShares(4)
    assert take_all(shares, ["10.0.0.1"]) == [2]
    shares.give_back("10.0.0.1")
    assert (shares.held("10.0.0.1"), len(shares)) == (1, 1)
    assert shares.take("10.0.0.1")
    assert not shares.take("10.0.0.1")


def test_fewer_places_count_from_the_next_one_on():
    shares = AddressShares(100)
    take_all(shares, ["10.0.0.1"])
    shares.places = 10
    assert not shares.take("10.0.0.2")


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcd"))), st.integers(0, 12))
def test_no_history_takes_more_than_there_is(steps, places):
    shares = AddressShares(places)
    held = dict.fromkeys("abcd", 0)
    for taking, address in steps:
        if taking:
            free = places - sum(held.values())
            assert shares.take(address) == (held[address] < free)
            held[address] += held[address] < free
        elif held[address]:
            shares.give_back(address)
            held[address] -= 1
        assert len(shares) == sum(held.values()) <= places
    assert {address: shares.held(address) for address in held} == held


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a socket", "a socket"),
        ("", ""),
    ],
)
def test_a_host_is_one_address(address, network):
    assert network_of(address) == network
