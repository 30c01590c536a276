"""The values of key-value commands and their replies."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RemoteProtocolError
from penstock.wire.messages.kv import (
    Observed,
    pack_failover_log,
    pack_features,
    pack_key_list,
    pack_vb_seqnos,
    unpack_failover_log,
    unpack_features,
    unpack_key_list,
    unpack_observed,
    unpack_vb_seqnos,
)
from tests.strategies import unsigned

U16, U64 = unsigned("H"), unsigned("Q")


@given(st.lists(st.tuples(U64, U64), min_size=1, max_size=25))
def test_failover_log(log: list[tuple[int, int]]) -> None:
    packed = pack_failover_log(log)
    assert len(packed) == 16 * len(log)
    assert unpack_failover_log(packed) == tuple(log)


def test_failover_log_newest_first() -> None:
    (newest, oldest) = unpack_failover_log(
        bytes.fromhex("00000000feeddeca 0000000000005432 0000000000decafe" + "00" * 8)
    )
    assert (newest.vbuuid, newest.seqno) == (0xFEEDDECA, 0x5432)
    assert (oldest.vbuuid, oldest.seqno) == (0xDECAFE, 0)


@given(st.dictionaries(U16, U64, max_size=30))
def test_vb_seqnos(seqnos: dict[int, int]) -> None:
    packed = pack_vb_seqnos(seqnos.items())
    assert len(packed) == 10 * len(seqnos)
    assert unpack_vb_seqnos(packed) == seqnos


@given(st.lists(U16, max_size=20))
def test_features(features: list[int]) -> None:
    assert unpack_features(pack_features(features)) == features


def test_features_are_big_endian() -> None:
    assert pack_features([0x04, 0x1234]) == b"\x00\x04\x12\x34"


@given(st.lists(st.binary(max_size=251), max_size=20))
def test_key_list(keys: list[bytes]) -> None:
    packed = pack_key_list(keys)
    assert unpack_key_list(packed) == keys


@pytest.mark.parametrize("value", [b"\0", b"\0\1", b"\0\2a", b"\0\1ab", b"\0\0\1"])
def test_partial_key_is_refused(value: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=f"of {len(value)} bytes, the last key is a part") as caught:
        unpack_key_list(value)
    assert not caught.value.fatal


@given(st.tuples(U16, U64, U64, U64) | st.tuples(U16, U64, U64, U64, U64, U64))
def test_observed(numbers: tuple[int, ...]) -> None:
    observed = Observed(*numbers)
    packed = observed.pack()
    assert (len(packed), packed[0]) == ((27, 0) if observed.old_vbuuid is None else (43, 1))
    assert unpack_observed(packed) == observed


BAD = [
    (unpack_failover_log, 0),
    (unpack_failover_log, 15),
    (unpack_failover_log, 17),
    (unpack_vb_seqnos, 9),
    (unpack_vb_seqnos, 11),
    (unpack_features, 1),
    (unpack_features, 3),
    (unpack_observed, 0),
    (unpack_observed, 26),
    (unpack_observed, 28),
    (unpack_observed, 43),
]


@pytest.mark.parametrize(("unpack", "nbytes"), BAD)
def test_wrong_length_is_refused(unpack, nbytes: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"{nbytes} bytes"):
        unpack(bytes(nbytes))


def test_unknown_format_of_observed_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="27 bytes"):
        unpack_observed(b"\x01" + bytes(26))


@given(st.binary(max_size=64))
def test_any_value_unpacks_or_is_refused(value: bytes) -> None:
    for unpack in (unpack_failover_log, unpack_vb_seqnos, unpack_features, unpack_observed, unpack_key_list):
        with contextlib.suppress(RemoteProtocolError):
            unpack(value)
