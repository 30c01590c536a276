"""Login and TLS: accepted logins, the errors of refused logins, and that no password is ever shown."""

import asyncio
import logging
from datetime import UTC, datetime

import pytest

from penstock import Node, connect, read_changes
from penstock.client.login.credentials import (
    Credentials,
    read_credentials_file,
    resolve_credentials,
)
from penstock.client.login.secret_sources import read_password_file
from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    RemoteProtocolError,
    StatusError,
    Unreachable,
    UntrustedNode,
    UsageError,
)
from penstock.node.auth import User
from penstock.node.auth.certificates import make_certificates
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from tests.client.peer import Script, documents, in_loop, reply

PASSWORD = "very secret"
ROLES = {"ada": ["admin"], "bob": ["data_reader[beer]"], "Zoë, =": ["admin"]}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A directory with users, and with certificates of two authorities."""
    path = tmp_path_factory.mktemp("login")
    with change_users(path / "users.json") as accounts:
        for name, roles in ROLES.items():
            accounts[name] = make_account(User.from_texts(name, roles), PASSWORD, 4096)
    for number in ("", "other-"):
        for name, made in make_certificates([], "ada", 2, datetime.now(UTC)).items():
            (path / f"{number}{name}.pem").write_bytes(made.certificate)
            (path / f"{number}{name}.key").write_bytes(made.key)
    return path


@pytest.fixture(scope="module")
def guarded(directory):
    """A node that requires a login, with and without TLS."""
    options = {
        "users": directory / "users.json",
        "certificate": directory / "server.pem",
        "key": directory / "server.key",
        "client_ca": directory / "ca.pem",
        "tls_port": 0,
    }
    with Node.running(["beer"], vbuckets=4, **options) as node:
        yield node


def plain(node, **options):
    return f"couchbase://127.0.0.1:{node.kv_port}/beer?" + "&".join(f"{k}={v}" for k, v in options.items())


def encrypted(node, host="127.0.0.1", **options):
    return f"couchbases://{host}:{node.tls_port}/beer?" + "&".join(f"{k}={v}" for k, v in options.items())


@pytest.mark.parametrize("name", ["ada", "Zoë, ="])
@in_loop
async def test_user_reads_writes_and_follows(guarded, name):
    async with connect(plain(guarded), username=name, password=PASSWORD) as bucket:
        await bucket.upsert("k", name.encode())
        assert (await bucket.get("k")).value == name.encode()
        assert [change.key async for change in bucket.changes(stop="now")] == [b"k"]


@in_loop
async def test_all_requests_work_over_tls(guarded, directory):
    url = encrypted(guarded, ca=directory / "ca.pem")
    async with connect(url, username="ada", password=PASSWORD) as bucket:
        await bucket.upsert_many(documents(0, 3000, size=700))
        found = {change.key async for change in bucket.changes(stop="now")}
        assert {key.encode() for key, _ in documents(0, 3000)} <= found
        await bucket.remove_many(key for key, _ in documents(0, 3000))


@in_loop
async def test_client_certificate_is_a_login(guarded, directory):
    own = {"certificate": directory / "client.pem", "certificateKey": directory / "client.key"}
    async with connect(encrypted(guarded, ca=directory / "ca.pem", **own)) as bucket:
        await bucket.upsert("k", b"v")


def test_blocking_reader_logs_in(guarded):
    rows = list(read_changes(plain(guarded), stop="now", username="ada", password=PASSWORD))
    assert sum(batch.num_rows for batch in rows)


# Refusals


@pytest.mark.parametrize("name", ["ada", "nobody"])
@in_loop
async def test_refused_login_is_not_retried(guarded, caplog, name):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(AuthenticationFailed) as caught:
        async with connect(plain(guarded), username=name, password="wrong secret"):
            pass
    assert str(caught.value) == f"127.0.0.1:{guarded.kv_port} refused the login of {name!r} by SCRAM-SHA512"
    assert not caught.value.retriable
    assert "wrong secret" not in caplog.text


@in_loop
async def test_client_without_login_is_refused(guarded):
    with pytest.raises(AccessDenied, match=r"/beer: .* or a client without login may not access it$"):
        async with connect(plain(guarded)):
            pass
    with pytest.raises(
        AccessDenied, match=r"/wine: the bucket does not exist, or user 'bob' may not access it$"
    ) as caught:
        async with connect(plain(guarded).replace("beer", "wine"), username="bob", password=PASSWORD):
            pass
    assert PASSWORD not in str(caught.value)


@in_loop
async def test_user_with_a_reader_role_cannot_write(guarded):
    async with connect(plain(guarded), username="bob", password=PASSWORD) as bucket:
        assert await bucket.get_many(["none"]) == [None]
        with pytest.raises(AccessDenied, match="SET b'k': EACCESS"):
            await bucket.upsert("k", b"v")


@pytest.mark.parametrize("ca", [None, "other-ca.pem"])
@in_loop
async def test_untrusted_certificate_is_refused(guarded, directory, ca):
    options = {} if ca is None else {"ca": directory / ca}
    with pytest.raises(UntrustedNode, match=f"^the certificate of 127.0.0.1:{guarded.tls_port} is not trusted: "):
        async with connect(encrypted(guarded, **options), username="ada", password=PASSWORD):
            pass


@in_loop
async def test_certificate_of_another_host_is_refused(guarded, directory):
    """127.0.0.2 is an address of this machine, but it is not in the certificate."""
    async with Forward("127.0.0.2", guarded.tls_port) as port:
        url = f"couchbases://127.0.0.2:{port}/beer?ca={directory / 'ca.pem'}"
        with pytest.raises(UntrustedNode, match="IP address mismatch"):
            async with connect(url, username="ada", password=PASSWORD):
                pass
        async with connect(f"{url}&tlsVerify=none", username="ada", password=PASSWORD):
            pass


class Forward:
    """A port that forwards its connections to another port of this machine."""

    def __init__(self, host, to):
        self.host, self.to = host, to
        self.pumps = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._accept, self.host, 0)
        return self._server.sockets[0].getsockname()[1]

    async def __aexit__(self, *exc):
        self._server.close()
        for pump in self.pumps:
            pump.cancel()
        await asyncio.gather(*self.pumps, return_exceptions=True)

    async def _accept(self, reader, writer):
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.to)
        for source, sink in ((reader, inner_writer), (inner_reader, writer)):
            self.pumps.add(asyncio.create_task(self._pump(source, sink)))

    async def _pump(self, source, sink):
        try:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        finally:
            sink.transport.abort()


@in_loop
async def test_certificates_are_unverified_only_on_request(guarded):
    async with connect(encrypted(guarded, tlsVerify="none"), username="ada", password=PASSWORD) as bucket:
        await bucket.upsert("k", b"v")


@in_loop
async def test_tls_to_a_port_without_tls_fails(guarded, directory):
    """Each side receives bytes that it cannot decode, and neither side waits for long."""
    url = plain(guarded, retrySeconds=0.2).replace("couchbase://", "couchbases://")
    with pytest.raises((Unreachable, RemoteProtocolError)):
        async with connect(url, username="ada", password=PASSWORD):
            pass
    async with Script(lambda peer, frame: b"HTTP/1.1 400 Bad Request\r\n\r\n") as script:
        url = script.url(retrySeconds=0.2).replace("couchbase://", "couchbases://")
        with pytest.raises((Unreachable, RemoteProtocolError)):
            async with connect(url):
                pass


UNUSABLE = [
    ({"ca": "none.pem"}, "option ca: no certificates in .*none.pem': No such file"),
    ({"ca": "ca.key"}, "option ca: no certificates in .*ca.key': no certificate"),
    ({"certificate": "client.pem"}, "option certificate: no certificate with its key in .*client.pem': "),
    ({"certificate": "client.pem", "certificateKey": "ca.key"}, "client.pem' and .*ca.key': key values mismatch"),
    ({"certificate": "none.pem"}, "none.pem': No such file"),
]


@pytest.mark.parametrize(("options", "found"), UNUSABLE)
@in_loop
async def test_unusable_files_are_refused(guarded, directory, options, found):
    options = {name: directory / file for name, file in options.items()}
    with pytest.raises(UsageError, match=found):
        async with connect(encrypted(guarded, **options)):
            pass


@in_loop
async def test_encrypted_key_is_refused_without_a_prompt(guarded, directory):
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key((directory / "client.key").read_bytes(), None)
    locked = directory / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"phrase"),
        )
    )
    with pytest.raises(UsageError, match="the key is encrypted, expected one that is not"):
        async with connect(encrypted(guarded, certificate=directory / "client.pem", certificateKey=locked)):
            pass


# Peers with other mechanisms


def make_sasl_script(mechanisms, answers=()):
    """Return a script that offers mechanisms, and the received (mechanism, value) of SASL_AUTH and SASL_STEP."""
    received, left = [], list(answers)

    def answer(peer, frame):
        if frame.opcode == Opcode.SASL_LIST_MECHS:
            return reply(frame, value=mechanisms) if mechanisms is not None else reply(frame, Status.UNKNOWN_COMMAND)
        if frame.opcode in (Opcode.SASL_AUTH, Opcode.SASL_STEP):
            received.append((frame.key, frame.value))
            status, value = left.pop(0)
            return reply(frame, status, value=value)
        return None

    return Script(answer), received


@in_loop
async def test_node_without_sasl_needs_no_login():
    script, received = make_sasl_script(None)
    async with script, connect(script.url(), username="ada", password=PASSWORD):
        assert not received


@in_loop
async def test_no_login_is_tried_without_a_user():
    script, received = make_sasl_script(b"SCRAM-SHA512 PLAIN")
    async with script, connect(script.url()):
        assert not received


@in_loop
async def test_plain_is_used_on_this_machine_if_nothing_else_is_offered():
    script, received = make_sasl_script(b"PLAIN", [(Status.SUCCESS, b"Authenticated")])
    async with script, connect(script.url(), username="ada", password=PASSWORD):
        assert received == [(b"PLAIN", b"\0ada\0" + PASSWORD.encode())]


@pytest.mark.parametrize(
    "answers",
    [
        [(Status.SUCCESS, b"")],
        [(Status.AUTH_CONTINUE, b"hello")],
        [(Status.AUTH_CONTINUE, b"r=short,s=c2FsdA==,i=4096")],
    ],
)
@in_loop
async def test_server_that_cannot_prove_itself_is_refused(answers):
    """The client does not trust it, even if it accepts the login, and never sends it the password."""
    script, received = make_sasl_script(b"PLAIN SCRAM-SHA1", answers)
    async with script:
        with pytest.raises(RemoteProtocolError) as caught:
            async with connect(script.url(), username="ada", password=PASSWORD):
                pass
        assert script.peers[0].lost.is_set() or await script.peers[0].lost.wait()
    assert PASSWORD not in str(caught.value)
    assert received[0][0] == b"SCRAM-SHA1"
    assert PASSWORD.encode() not in b"".join(value for _, value in received)


@in_loop
async def test_unsupported_mechanisms_are_an_error():
    script, _ = make_sasl_script(b"GSSAPI")
    async with script:
        with pytest.raises(StatusError, match="offers GSSAPI") as caught:
            async with connect(script.url(), username="ada", password=PASSWORD):
                pass
    assert not caught.value.retriable


# Sources of credentials


def test_credentials_come_from_arguments_and_the_environment():
    known = {"PENSTOCK_USERNAME": "env", "PENSTOCK_PASSWORD": "its"}
    assert resolve_credentials(None, None) is None
    assert resolve_credentials(None, None, {"PENSTOCK_PASSWORD": "its"}) is None
    assert resolve_credentials(None, None, {"PENSTOCK_USERNAME": ""}) is None
    assert resolve_credentials(None, None, known) == Credentials("env", "its")
    assert resolve_credentials("ada", None, known) == Credentials("ada", "its")
    assert resolve_credentials("ada", "p", known) == Credentials("ada", "p")
    assert resolve_credentials("beer", "", known) == Credentials("beer", "")
    assert resolve_credentials("beer", None, {"PENSTOCK_PASSWORD": ""}) == Credentials("beer", "")
    with pytest.raises(UsageError, match="a username without a password"):
        resolve_credentials("ada", None)
    with pytest.raises(UsageError, match="a password without a username"):
        resolve_credentials(None, "p")


@pytest.mark.parametrize(("username", "password"), [("", "p"), ("u\0", "p"), ("u", "p\0"), ("u", "\ud800p")])
def test_impossible_credentials_are_refused(username, password):
    with pytest.raises(UsageError) as caught:
        Credentials(username, password)
    assert repr(password) not in str(caught.value)


def test_password_file_is_read(tmp_path):
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    assert read_password_file(str(file)) == PASSWORD
    file.write_text("\n")
    assert read_password_file(str(file)) == ""


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("password", [" blanks ", "a\tb", "a\x0bb\x0c", "a\x85b", "a\u2028b", "a\rb", "é"])
def test_only_the_line_end_of_a_password_is_cut(tmp_path, password, end):
    file = tmp_path / "password"
    for mark in ("", "\ufeff"):
        file.write_bytes(f"{mark}{password}{end}".encode())
        assert read_password_file(str(file)) == password


@pytest.mark.parametrize("content", [b"", b"\n\n", b"one\ntwo\n", b"\xff\xfe", b"x" * 5000])
def test_file_without_a_password_is_refused(tmp_path, content):
    file = tmp_path / "password"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=str(file)) as caught:
        read_password_file(str(file))
    assert len(str(caught.value)) < len(str(file)) + 100
    with pytest.raises(UsageError, match="No such file"):
        read_password_file(str(tmp_path / "none"))


def test_credentials_file_is_read(tmp_path):
    file = tmp_path / "login.json"
    file.write_text('{"username": "ada", "password": "very secret"}')
    assert read_credentials_file(str(file)) == Credentials("ada", PASSWORD)
    for wrong in ('{"username": "ada"}', "[]", '"very secret"', '{"username":"ada","password":["very secret"]}'):
        file.write_text(wrong)
        with pytest.raises(UsageError, match=r"expected .*username") as caught:
            read_credentials_file(str(file))
        assert PASSWORD not in str(caught.value)
