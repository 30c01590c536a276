"""Logins over a connection, with TLS and without: the effect on commands, buckets and documents."""

import hmac
import logging
import socket
import ssl
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from scramp import ScramClient

from penstock.errors import UsageError
from penstock.node import Node
from penstock.node.auth import User, users_file
from penstock.node.auth.certificates import make_certificates
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.node.session import connection_registry
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.flags import PathFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.cluster import GetErrorMap, ListBuckets
from penstock.wire.messages.dcp import Open
from penstock.wire.messages.kv import (
    Get,
    GetAllVbSeqnos,
    GetClusterConfig,
    Hello,
    Noop,
    SelectBucket,
    Set,
    Stat,
    pack_features,
)
from penstock.wire.messages.observe import CompactDb, EvictKey, SetParam, StartPersistence, StopPersistence
from penstock.wire.messages.sasl import SaslAuth, SaslListMechs, SaslStep
from penstock.wire.messages.subdoc import SubdocLookup, SubdocMutation
from tests.node.wire_client import connected, find_session
from tests.patience import PATIENCE

S = Status
ITERATIONS = 4096

ROLES = {
    "root": ["admin"],
    "reader": ["data_reader[beer]"],
    "writer": ["data_writer[beer]"],
    "follower": ["data_dcp_reader[beer]"],
}


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users.json"
    with change_users(path) as accounts:
        for name, roles in ROLES.items():
            accounts[name] = make_account(User.from_texts(name, roles), f"{name}'s", ITERATIONS)
    return path


@pytest.fixture
def guarded(users):
    with Node.running(["default", "beer", "wine"], vbuckets=4, users=users) as node:
        yield node


def log_in(client, name, password=None, mechanism="SCRAM-SHA512"):
    """Log in by SCRAM, and return the last status; the default password is the name with `'s`."""
    scram = ScramClient([mechanism.replace("SHA", "SHA-")], name, password or f"{name}'s")
    key = mechanism.encode()
    reply = client.ask(SaslAuth(key=key, value=scram.get_client_first().encode()))
    if reply.specific != S.AUTH_CONTINUE:
        return reply.specific
    scram.set_server_first(reply.value.decode())
    reply = client.ask(SaslStep(key=key, value=scram.get_client_final().encode()))
    if reply.specific == S.SUCCESS:
        scram.set_server_final(reply.value.decode())
    return reply.specific


def test_only_login_commands_work_before_login(guarded):
    with connected(guarded) as client:
        assert client.ask(SaslListMechs()).value == b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1"
        assert client.status(Noop()) == S.SUCCESS
        assert client.status(Hello(value=pack_features([Feature.XERROR]))) == S.SUCCESS
        assert client.status(GetErrorMap(version=2)) == S.SUCCESS
        for message in (
            *(Get(key=b"k"), Set(key=b"k", value=b"v"), Stat(), SelectBucket(key=b"beer"), SelectBucket(key=b"none")),
            *(ListBuckets(), GetClusterConfig(), Open(key=b"name", flags=1), GetAllVbSeqnos()),
        ):
            reply = client.ask(message)
            assert (reply.specific, reply.value) == (S.EACCESS, b""), message


def test_other_commands_are_refused_before_login(guarded):
    """The lengths of the frame make no difference."""
    before = {
        *(Opcode.NOOP, Opcode.VERSION, Opcode.QUIT, Opcode.QUITQ, Opcode.HELLO, Opcode.GET_ERROR_MAP),
        *(Opcode.SASL_LIST_MECHS, Opcode.SASL_AUTH, Opcode.SASL_STEP),
    }
    with connected(guarded) as client:
        for opcode in sorted(set(range(256)) - before):
            for extras in (0, 4, 8, 31, 48):
                header = bytes((0x80, opcode, 0, 1, extras, 0, 0, 0)) + (extras + 2).to_bytes(4, "big") + bytes(12)
                client.send(header + bytes(extras) + b"kv")
                reply = client.receive()
                assert (reply.opcode, reply.specific, reply.value) == (opcode, S.EACCESS, b"")


@pytest.mark.parametrize("password", ["", "another"])
def test_user_without_a_password_gets_the_bucket_of_the_same_name(tmp_path, password):
    """Tools of Couchbase 2.x send PLAIN with the bucket's name and an empty password, and no SELECT_BUCKET."""
    users = tmp_path / "users.json"
    with change_users(users) as accounts:
        accounts["beer"] = make_account(
            User.from_texts("beer", ["data_reader[beer]", "data_writer[beer]"]), None, ITERATIONS
        )
        accounts["wine"] = make_account(User.from_texts("wine", ["data_reader[wine]"]), "wine's", ITERATIONS)
    with Node.running(["default", "beer", "wine"], vbuckets=4, users=users, allow_plain=True) as node:
        with connected(node) as client:
            login = SaslAuth(key=b"PLAIN", value=b"\0beer\0" + password.encode())
            assert (client.status(login) == S.SUCCESS) == (not password)
            if not password:
                assert client.set(b"k", b"v").specific == S.SUCCESS
                assert node.buckets["beer"].store.vbuckets[0].changes.items == 1
        with connected(node) as client:
            assert client.status(SaslAuth(key=b"PLAIN", value=b"\0wine\0")) == S.AUTH_ERROR


@pytest.mark.parametrize(
    ("name", "password", "status"),
    [
        (b"beer", b"", S.SUCCESS),
        (b"beer", b"beer", S.AUTH_ERROR),
        (b"wine", b"", S.AUTH_ERROR),
        (b"wine", b"wine's", S.AUTH_ERROR),
        (b"nobody", b"", S.AUTH_ERROR),
        (b"", b"", S.EINVAL),
        (b"\xff", b"", S.EINVAL),
    ],
)
def test_cram_md5_logs_in_users_without_a_password(tmp_path, name, password, status):
    """cbtransfer of Couchbase 2.5.1 knows no other mechanism, and does not request the list."""
    users = tmp_path / "users.json"
    with change_users(users) as accounts:
        accounts["beer"] = make_account(User.from_texts("beer", ["data_reader[beer]"]), None, ITERATIONS)
        accounts["wine"] = make_account(User.from_texts("wine", ["data_reader[wine]"]), "wine's", ITERATIONS)
    with Node.running(["beer", "wine"], vbuckets=4, users=users, allow_plain=True) as node, connected(node) as client:
        assert client.ask(SaslListMechs()).value == b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"
        challenge = client.ask(SaslAuth(key=b"CRAM-MD5"))
        assert challenge.specific == S.AUTH_CONTINUE
        proof = hmac.digest(password, challenge.value, "md5").hex().encode()
        assert client.status(SaslStep(key=b"CRAM-MD5", value=name + b" " + proof)) == status
        assert client.status(Get(key=b"k")) == (S.KEY_ENOENT if status == S.SUCCESS else S.EACCESS)


def test_cram_md5_is_refused_without_plain(guarded):
    with connected(guarded) as client:
        assert client.status(SaslAuth(key=b"CRAM-MD5")) == S.AUTH_ERROR


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA512", "SCRAM-SHA256", "SCRAM-SHA1"])
def test_login_grants_the_privileges_of_the_roles(guarded, mechanism):
    with connected(guarded) as client:
        assert log_in(client, "root", mechanism=mechanism) == S.SUCCESS
        assert client.ask(ListBuckets()).value == b"beer default wine"
        assert client.set(b"k", b"v").specific == S.SUCCESS  # in `default`, which needs no SELECT_BUCKET
        assert find_session(guarded, client).user == "root"


@pytest.mark.parametrize(
    ("name", "get", "set_", "stream", "stats"),
    [
        ("root", S.SUCCESS, S.SUCCESS, S.SUCCESS, S.SUCCESS),
        ("reader", S.SUCCESS, S.EACCESS, S.EACCESS, S.EACCESS),
        ("writer", S.EACCESS, S.SUCCESS, S.EACCESS, S.EACCESS),
        ("follower", S.SUCCESS, S.EACCESS, S.SUCCESS, S.SUCCESS),
    ],
)
def test_role_limits_commands(guarded, name, get, set_, stream, stats):
    with connected(guarded) as root:
        log_in(root, "root")
        root.ask(SelectBucket(key=b"beer"))
        root.set(b"k", b"v")
    with connected(guarded) as client:
        log_in(client, name)
        if name != "root":
            assert client.ask(ListBuckets()).value == b"beer"
            assert client.status(SelectBucket(key=b"wine")) == S.EACCESS
            assert client.status(SelectBucket(key=b"none")) == S.EACCESS
        assert client.status(SelectBucket(key=b"beer")) == S.SUCCESS
        assert client.get(b"k").specific == get
        assert client.set(b"k", b"v").specific == set_
        assert client.status(Stat(key=b"vbucket")) == stats
        assert client.status(Open(key=b"name", flags=1)) == stream


ADMINISTRATION = [
    *(StopPersistence(), StartPersistence(), EvictKey(key=b"k"), SetParam(type=1, key=b"max_ttl", value=b"0")),
    *(CompactDb(), Stat(key=b"reset"), Stat(key=b"tasks-all")),
]


@pytest.mark.parametrize("message", ADMINISTRATION, ids=[f"{type(one).__name__}{one.key!r}" for one in ADMINISTRATION])
def test_administration_needs_the_admin_role(guarded, message):
    for name in ("root", "follower"):
        with connected(guarded) as client:
            log_in(client, name)
            assert client.status(SelectBucket(key=b"beer")) == S.SUCCESS
            assert (client.status(message) == S.EACCESS) == (name == "follower")


def test_wrong_password_delays_the_next_login(guarded, caplog):
    caplog.set_level(logging.INFO)
    with connected(guarded) as client:
        assert log_in(client, "root", "sesame") == S.AUTH_ERROR
        assert log_in(client, "nobody") == S.AUTH_ERROR
        assert guarded.attempts.get_delay("127.0.0.1", "root") > 0
        assert client.status(Get(key=b"k")) == S.EACCESS
        assert log_in(client, "root") == S.SUCCESS
        assert guarded.attempts.get_delay("127.0.0.1", "root") == 0
    messages = [record.getMessage() for record in caplog.records if "login" in record.getMessage()]
    assert len(messages) == 2
    assert "sesame" not in " ".join(messages)
    caplog.clear()


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (SaslAuth(key=b"SCRAM-SHA3", value=b"x"), S.AUTH_ERROR),
        (SaslAuth(key=b"PLAIN", value=b"\0root\0root's"), S.AUTH_ERROR),
        (SaslStep(key=b"SCRAM-SHA512", value=b"c=biws"), S.EINVAL),
        (SaslAuth(key=b"SCRAM-SHA512", value=b"n,,n=" + b"u" * 500 + b",r=abc"), S.EINVAL),
        (SaslAuth(key=b"SCRAM-SHA512", value=b"n" * 4000), S.EINVAL),
        (SaslAuth(key=b"SCRAM-SHA512", value=b"garbage"), S.EINVAL),
    ],
)
def test_invalid_logins_are_refused(guarded, message, status):
    with connected(guarded) as client:
        assert client.status(message) == status
        assert client.status(Get(key=b"k")) == S.EACCESS
        assert log_in(client, "root") == S.SUCCESS


def test_second_login_replaces_the_first(guarded):
    with connected(guarded) as client:
        log_in(client, "root")
        client.ask(SelectBucket(key=b"wine"))
        assert client.status(SaslAuth(key=b"SCRAM-SHA512", value=b"garbage")) == S.EINVAL
        assert client.status(Get(key=b"k")) == S.EACCESS
        log_in(client, "reader")
        assert client.status(Get(key=b"k")) == S.NO_BUCKET


def test_streams_end_with_their_user(guarded):
    with connected(guarded) as client:
        log_in(client, "root")
        assert client.status(Open(key=b"name", flags=1)) == S.SUCCESS
        assert client.status(SaslAuth(key=b"SCRAM-SHA512", value=b"n,,n=root,r=abc")) == S.NOT_SUPPORTED


def test_removed_user_loses_access_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(users_file, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(connection_registry, "_CHECK_SECONDS", 0.02)
    path = tmp_path / "users.json"
    with change_users(path) as accounts:
        accounts["alice"] = make_account(User.from_texts("alice", ["admin"]), "alice's", ITERATIONS)
        accounts["bob"] = make_account(User.from_texts("bob", ["admin"]), "bob's", ITERATIONS)
    with (
        Node.running(vbuckets=1, users=path) as node,
        connected(node) as alice,
        connected(node) as bob,
        connected(node) as stream,
    ):
        for client, name in ((alice, "alice"), (stream, "alice"), (bob, "bob")):
            assert log_in(client, name) == S.SUCCESS
        stream.open()
        with change_users(path) as accounts:
            del accounts["alice"]
        while alice.status(Get(key=b"k")) != S.EACCESS:
            pass
        assert stream.ended()
        assert bob.status(Get(key=b"k")) == S.KEY_ENOENT


@pytest.mark.parametrize(
    ("roles", "get", "set_"),
    [
        (["data_reader[*]"], S.SUCCESS, S.EACCESS),
        (["data_reader[default]", "data_writer[default]"], S.NO_BUCKET, S.NO_BUCKET),
    ],
    ids=["without writing", "of another bucket"],
)
def test_changed_roles_do_not_select_another_bucket(tmp_path, monkeypatch, roles, get, set_):
    """A client that keeps writing without selecting a bucket must not write to `default`."""
    monkeypatch.setattr(users_file, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(connection_registry, "_CHECK_SECONDS", 0.02)
    path = tmp_path / "users.json"
    with change_users(path) as accounts:
        accounts["alice"] = make_account(
            User.from_texts("alice", ["data_reader[*]", "data_writer[*]"]), "alice's", ITERATIONS
        )
    with Node.running(["default", "beer"], vbuckets=1, users=path) as node, connected(node) as client:
        assert log_in(client, "alice") == S.SUCCESS
        assert client.status(SelectBucket(key=b"beer")) == S.SUCCESS
        assert client.set(b"k").specific == S.SUCCESS
        with change_users(path) as accounts:
            accounts["alice"] = replace(accounts["alice"], user=User.from_texts("alice", roles))
        while (status := client.set(b"k").specific) == S.SUCCESS:
            assert not node.buckets["default"].store.vbuckets[0].changes.items
        assert (client.get(b"k").specific, status) == (get, set_)


@pytest.mark.parametrize(
    ("roles", "names"),
    [
        (["data_reader[beer]"], b'["mine"]'),
        (["data_reader[beer]", "data_writer[*]"], b'["mine"]'),
        (["data_reader[beer]", "data_dcp_reader[wine]"], b'["mine"]'),
        (["data_reader[beer]", "data_dcp_reader[beer:_default:other]"], b'["mine"]'),
        (["data_dcp_reader[beer:_default:_default]"], b'["_sync","mine"]'),
        (["replication_target[*]"], b'["_sync","mine"]'),
        (["admin"], b'["_sync","mine"]'),
    ],
)
def test_listing_system_attributes_needs_a_privilege(tmp_path, roles, names):
    path = tmp_path / "users.json"
    with change_users(path) as accounts:
        accounts["root"] = make_account(User.from_texts("root", ["admin"]), "root's", ITERATIONS)
        accounts["alice"] = make_account(User.from_texts("alice", roles), "alice's", ITERATIONS)
    with Node.running(["beer", "wine"], vbuckets=1, users=path) as node, connected(node) as client:
        assert client.status(Hello(value=pack_features([Feature.XATTR]))) == S.SUCCESS
        assert log_in(client, "root") == S.SUCCESS
        assert client.status(SelectBucket(key=b"beer")) == S.SUCCESS
        client.set(b"k", b"{}")
        for name in (b"_sync", b"mine"):
            upsert = SubdocMutation.for_path(name, b"1", key=b"k", flags=PathFlag.XATTR)
            assert client.ask(upsert.encode(Opcode.SUBDOC_DICT_UPSERT)).specific == S.SUCCESS
        assert log_in(client, "alice") == S.SUCCESS
        assert client.status(SelectBucket(key=b"beer")) == S.SUCCESS
        request = SubdocLookup.for_path(b"$XTOC", key=b"k", flags=PathFlag.XATTR)
        assert client.ask(request.encode(Opcode.SUBDOC_GET)).value == names


@pytest.mark.parametrize(
    ("roles", "read", "written"),
    [
        (["data_reader[beer]", "data_writer[beer]"], S.EACCESS, S.EACCESS),
        (["data_dcp_reader[beer]", "data_writer[beer]"], S.SUCCESS, S.EACCESS),
        (["data_reader[beer]", "data_writer[beer]", "data_dcp_reader[beer:_default:other]"], S.EACCESS, S.EACCESS),
        (["replication_target[beer]"], S.SUCCESS, S.SUCCESS),
        (["admin"], S.SUCCESS, S.SUCCESS),
    ],
)
def test_system_attributes_need_a_privilege(tmp_path, roles, read, written):
    path = tmp_path / "users.json"
    with change_users(path) as accounts:
        accounts["root"] = make_account(User.from_texts("root", ["admin"]), "root's", ITERATIONS)
        accounts["alice"] = make_account(User.from_texts("alice", roles), "alice's", ITERATIONS)
    upsert = SubdocMutation.for_path(b"_sync", b"1", key=b"k", flags=PathFlag.XATTR).encode(Opcode.SUBDOC_DICT_UPSERT)
    get = SubdocLookup.for_path(b"_sync", key=b"k", flags=PathFlag.XATTR).encode(Opcode.SUBDOC_GET)
    with Node.running(["beer"], vbuckets=1, users=path) as node, connected(node) as client:
        assert client.status(Hello(value=pack_features([Feature.XATTR]))) == S.SUCCESS
        assert log_in(client, "root") == S.SUCCESS
        assert client.status(SelectBucket(key=b"beer")) == S.SUCCESS
        client.set(b"k", b"{}")
        assert client.status(upsert) == S.SUCCESS
        assert log_in(client, "alice") == S.SUCCESS
        assert client.status(SelectBucket(key=b"beer")) == S.SUCCESS
        assert (client.status(get), client.status(upsert)) == (read, written)
        absent = SubdocLookup.for_path(b"_sync", key=b"none", flags=PathFlag.XATTR).encode(Opcode.SUBDOC_GET)
        assert client.status(absent) == S.KEY_ENOENT  # a missing document is reported first


def test_login_is_optional_without_users(node, client):
    assert client.ask(SaslListMechs()).value == b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"
    assert client.set(b"k", b"v").specific == S.SUCCESS
    assert log_in(client, "Administrator", "password") == S.SUCCESS
    assert client.get(b"k").value == b"v"
    assert client.status(SaslAuth(key=b"PLAIN", value=b"\0Administrator\0password")) == S.SUCCESS
    assert find_session(node, client).user == "Administrator"


def test_public_node_without_users_is_refused():
    with pytest.raises(UsageError, match="penstock user add"), Node.running(host="0.0.0.0"):
        pass


def test_public_node_with_users_starts(users):
    with Node.running(host="0.0.0.0", users=users, vbuckets=1) as node:
        assert node.kv_port


def test_long_frames_are_refused_before_login(guarded):
    with connected(guarded) as client:
        client.send(bytes((0x80, Opcode.HELLO, 0, 0, 0, 0, 0, 0)) + (2 << 20).to_bytes(4, "big") + bytes(12))
        assert client.ended()


def test_connection_without_a_login_ends(users, monkeypatch):
    monkeypatch.setattr(connection_registry, "_CHECK_SECONDS", 0.02)
    with Node.running(users=users, vbuckets=1, login_timeout=0.1) as node, connected(node) as client:
        assert client.ended()


@pytest.fixture
def certificates(tmp_path):
    """Write certificates and keys of a CA, a node and a client `reader`; return the paths by NAME and NAME_key."""
    paths = {}
    for name, made in make_certificates([], "reader", 2, datetime.now(UTC)).items():
        for kind, pem in ((name, made.certificate), (f"{name}_key", made.key)):
            paths[kind] = tmp_path / f"{kind}.pem"
            paths[kind].write_bytes(pem)
    return paths


@pytest.fixture
def encrypted(users, certificates):
    files = {"certificate": certificates["server"], "key": certificates["server_key"], "client_ca": certificates["ca"]}
    with Node.running(["default", "beer"], users=users, vbuckets=1, tls_port=0, **files) as node:
        yield node


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "TLS"])
def test_lost_login_limits_an_unfinished_frame(encrypted, certificates, is_encrypted, caplog):
    """The buffer holds more of the frame than allowed before a login; this once stopped a node with TLS."""
    tls = ssl.create_default_context(cafile=certificates["ca"]) if is_encrypted else None
    half = Set(key=b"k", value=bytes(20_000)).encode()[:15_000]
    with connected(encrypted, tls=tls) as client:
        assert log_in(client, "root") == S.SUCCESS
        client.send(SaslAuth(key=b"SCRAM-SHA512", value=b"garbage").encode() + half)
        assert client.receive().specific == S.EINVAL
        client.send(bytes(10))
        assert client.ended()
    with connected(encrypted) as client:
        assert client.status(Noop()) == S.SUCCESS
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_plain_is_accepted_over_tls(encrypted, certificates):
    with connected(encrypted, tls=ssl.create_default_context(cafile=certificates["ca"])) as client:
        assert client.ask(SaslListMechs()).value == b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"
        assert client.status(Get(key=b"k")) == S.EACCESS
        assert client.status(SaslAuth(key=b"PLAIN", value=b"\0root\0root's")) == S.SUCCESS
        big = b"v" * 3_000_000
        assert client.set(b"k", big).specific == S.SUCCESS
        assert client.get(b"k").value == big
    with connected(encrypted) as client:
        assert b"PLAIN" not in client.ask(SaslListMechs()).value


def test_listeners_have_separate_mechanisms(users, certificates):
    files = {"certificate": certificates["server"], "key": certificates["server_key"]}
    own: dict[str, Any] = {"mechanisms": ["SCRAM-SHA1"], "tls_mechanisms": ["PLAIN"]}
    with Node.running(users=users, vbuckets=1, tls_port=0, **files, **own) as node:
        with connected(node) as plain:
            assert plain.ask(SaslListMechs()).value == b"SCRAM-SHA1"
            assert log_in(plain, "root", mechanism="SCRAM-SHA512") == S.AUTH_ERROR
            assert log_in(plain, "root", mechanism="SCRAM-SHA1") == S.SUCCESS
        with connected(node, tls=ssl.create_default_context(cafile=certificates["ca"])) as encrypted:
            assert encrypted.ask(SaslListMechs()).value == b"PLAIN"


def test_client_certificate_logs_in(encrypted, certificates):
    context = ssl.create_default_context(cafile=certificates["ca"])
    context.load_cert_chain(certificates["client"], certificates["client_key"])
    with connected(encrypted, "beer", tls=context) as client:
        assert find_session(encrypted, client).user == "reader"
        assert client.get(b"k").specific == S.KEY_ENOENT
        assert client.set(b"k").specific == S.EACCESS


def test_old_tls_versions_are_refused(encrypted, certificates):
    context = ssl.create_default_context(cafile=certificates["ca"])
    with pytest.deprecated_call():
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection((encrypted.host, encrypted.tls_port), timeout=PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname=encrypted.host, do_handshake_on_connect=False) as wrapped,
        pytest.raises((ssl.SSLError, ConnectionResetError)),
    ):
        wrapped.do_handshake()


def test_certificate_is_reloaded(encrypted, certificates, tmp_path):
    context = ssl.create_default_context(cafile=certificates["ca"])
    with connected(encrypted, tls=context) as before:
        made = make_certificates([], "reader", 2, datetime.now(UTC))
        certificates["server"].write_bytes(made["server"].certificate)
        certificates["server_key"].write_bytes(made["server"].key)
        encrypted.loop.call_soon_threadsafe(encrypted.reload)
        (tmp_path / "ca").write_bytes(made["ca"].certificate)
        newer = ssl.create_default_context(cafile=tmp_path / "ca")
        assert before.status(Noop()) == S.SUCCESS
        with connected(encrypted, tls=newer) as after:
            assert after.status(Noop()) == S.SUCCESS


def test_peer_without_a_handshake_delays_no_other_client(encrypted, certificates):
    with socket.create_connection((encrypted.host, encrypted.tls_port)) as silent:
        silent.sendall(b"\x80\x0a" + bytes(22))  # these bytes are no TLS
        with connected(encrypted, tls=ssl.create_default_context(cafile=certificates["ca"])) as client:
            assert client.status(Noop()) == S.SUCCESS
