"""The prefix of keys: ids from kv_engine's own table, and every other id there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.wire.collection_key import pack_collection_id, split_collection_key


@pytest.mark.parametrize(
    ("collection_id", "prefix"),
    [
        (0, "00"),
        (0x7F, "7f"),
        (0x80, "8001"),
        (0x555, "d50a"),
        (0xCAFEF00D, "8de0fbd70c"),
        (0xFFFFFFFF, "ffffffff0f"),
    ],
)
def test_a_known_id(collection_id, prefix):
    assert pack_collection_id(collection_id).hex() == prefix
    assert split_collection_key(bytes.fromhex(prefix) + b"k") == (collection_id, b"k")


@given(st.integers(0, 2**32 - 1), st.binary(max_size=20))
def test_there_and_back(collection_id, key):
    assert split_collection_key(pack_collection_id(collection_id) + key) == (collection_id, key)


@given(st.binary(max_size=8))
def test_whatever_is_read_has_one_form_only(key):
    try:
        collection_id, rest = split_collection_key(key)
    except RemoteProtocolError:
        return
    assert pack_collection_id(collection_id) + rest == key


@pytest.mark.parametrize("key", ["", "80", "8000", "808000", "ffffffff10", "ffffffffff01", "8080808080"])
def test_what_is_no_prefix(key):
    with pytest.raises(RemoteProtocolError, match="collection id"):
        split_collection_key(bytes.fromhex(key))


@pytest.mark.parametrize("collection_id", [-1, 2**32])
def test_what_is_no_id(collection_id):
    with pytest.raises(LocalProtocolError, match="expected 0 to 4294967295"):
        pack_collection_id(collection_id)
