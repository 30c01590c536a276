"""python-binary-memcached, a plain memcached client; its only login is PLAIN."""

import ssl

import pytest

from tests.compat.installed import require_package
from tests.patience import PATIENCE

require_package("bmemcached")

import bmemcached
from bmemcached.exceptions import MemcachedException


@pytest.fixture
def client(open_node):
    client = bmemcached.Client((f"127.0.0.1:{open_node.kv_port}",), socket_timeout=PATIENCE)
    yield client
    client.disconnect_all()


def test_documents_are_stored_read_and_deleted(client):
    assert client.set("k", "value")
    assert client.get("k") == "value"
    assert not client.add("k", "other")
    assert client.replace("k", {"a": [1, 2]})
    assert client.get("k") == {"a": [1, 2]}
    assert client.delete("k")
    assert client.get("k") is None
    assert not client.replace("k", "nowhere")


def test_cas_guards_a_store(client):
    client.set("k", "1")
    value, cas = client.gets("k")
    assert value == "1"
    assert client.cas("k", "2", cas)
    assert not client.cas("k", "3", cas)
    assert client.get("k") == "2"


def test_many_documents_are_stored_and_read(client):
    documents = {f"key-{number}": f"value {number}" * 50 for number in range(500)}
    assert client.set_multi(documents) == []  # the keys that failed
    assert client.get_multi([*documents, "nowhere"]) == documents
    assert client.delete_multi(list(documents))
    assert client.get_multi(list(documents)) == {}


def test_large_documents_are_stored_and_read(client):
    large = {f"large-{number}": bytes([number]) * (18 << 20) for number in range(3)}
    for key, value in large.items():
        assert client.set(key, value, compress_level=0)
    assert client.get_multi(list(large)) == large
    assert client.replace("large-1", b"x" * (18 << 20), compress_level=0)
    assert client.get("large-1") == b"x" * (18 << 20)


def test_counters_count(client):
    assert client.incr("n", 1, default=5) == 5
    assert client.incr("n", 3) == 8
    assert client.decr("n", 10) == 0
    assert client.get("n") == "0"


def test_statistics_are_read(client):
    client.set("k", "v")
    (stats,) = client.stats().values()
    assert int(stats["curr_items"]) == 1
    assert client.flush_all()
    assert client.get("k") is None


@pytest.fixture
def encrypted(tls_node):
    """Options of a client with TLS, which protects the password of PLAIN."""
    context = ssl.create_default_context(cafile=tls_node.files / "ca.pem")
    return {"servers": (tls_node.url.removeprefix("couchbases://"),), "tls_context": context, "socket_timeout": 10}


def test_login_succeeds(encrypted):
    client = bmemcached.Client(username="alice", password="wonderland", **encrypted)
    assert client.set("bmemcached", "v")
    assert client.get("bmemcached") == "v"
    client.disconnect_all()


def test_wrong_password_is_refused(encrypted):
    client = bmemcached.Client(username="alice", password="looking-glass", **encrypted)
    with pytest.raises(MemcachedException, match="32"):  # AUTH_ERROR
        client.get("bmemcached")
    client.disconnect_all()


def test_commands_without_a_login_are_refused(encrypted):
    client = bmemcached.Client(**encrypted)
    with pytest.raises(MemcachedException, match="36"):  # EACCESS
        client.get("bmemcached")
    client.disconnect_all()
