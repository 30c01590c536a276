"""Shares of connections: the number of places that each address can take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.node.transport.address_shares import AddressShares, get_network


def take_all(shares, addresses):
    """Take places for all addresses in turn until no address gets another, and return the places of each."""
    while sum(shares.take_place(address) for address in addresses):  # each round asks for all
        continue
    return [shares.count_places(address) for address in addresses]


@pytest.mark.parametrize(
    ("places", "count", "each"),
    [(60_000, 1, 30_000), (512, 1, 256), (300, 2, 100), (1000, 9, 100), (1, 1, 1), (3, 1, 2), (0, 1, 0)],
)
def test_addresses_get_equal_shares(places, count, each):
    assert take_all(AddressShares(places), [f"10.0.0.{n}" for n in range(count)]) == [each] * count


def test_first_address_leaves_room_for_others():
    shares = AddressShares(100)
    assert take_all(shares, ["10.0.0.1"]) == [50]
    assert take_all(shares, ["10.0.0.2"]) == [25]
    assert shares.take_place("10.0.0.3")
    assert not shares.take_place("10.0.0.1")


def test_freed_place_can_be_taken_again():
    shares = AddressShares(4)
    assert take_all(shares, ["10.0.0.1"]) == [2]
    shares.free_place("10.0.0.1")
    assert (shares.count_places("10.0.0.1"), len(shares)) == (1, 1)
    assert shares.take_place("10.0.0.1")
    assert not shares.take_place("10.0.0.1")


def test_lower_number_of_places_applies_to_next_place():
    shares = AddressShares(100)
    take_all(shares, ["10.0.0.1"])
    shares.places = 10
    assert not shares.take_place("10.0.0.2")


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcd"))), st.integers(0, 12))
def test_addresses_never_take_more_than_all_places(steps, places):
    shares = AddressShares(places)
    held = dict.fromkeys("abcd", 0)
    for taking, address in steps:
        if taking:
            free = places - sum(held.values())
            assert shares.take_place(address) == (held[address] < free)
            held[address] += held[address] < free
        elif held[address]:
            shares.free_place(address)
            held[address] -= 1
        assert len(shares) == sum(held.values()) <= places
    assert {address: shares.count_places(address) for address in held} == held


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
def test_addresses_of_a_host_share_one_network(address, network):
    assert get_network(address) == network
