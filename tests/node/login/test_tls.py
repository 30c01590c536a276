"""TLS with real certificates over real sockets, and the files that it is made of."""

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from penstock.errors import UsageError
from penstock.node.auth import AuthState, Login, User, Users, decide_access
from penstock.node.auth.certificates import make_certificates
from penstock.node.auth.server_tls import ServerTls, list_user_names, make_server_context
from penstock.node.auth.users import Account
from tests.patience import PATIENCE


def write(directory, user="alice", hosts=(), days=7):
    directory.mkdir(exist_ok=True)
    for name, made in make_certificates(hosts, user, days, datetime.now(UTC)).items():
        (directory / f"{name}.pem").write_bytes(made.certificate)
        (directory / f"{name}.key").write_bytes(made.key)
    return directory


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write(tmp_path_factory.mktemp("tls"), hosts=["node.example.org", "192.0.2.7", "münchen.example"])


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return write(tmp_path_factory.mktemp("other"))


def context_of(files, **options):
    return make_server_context(files / "server.pem", files / "server.key", **options)


def client_of(files, *, certificate=None):
    """A client that believes an authority; certificate: the directory with the one that it shows."""
    context = ssl.create_default_context(cafile=files / "ca.pem")
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 has it
    if certificate is not None:
        context.load_cert_chain(certificate / "client.pem", certificate / "client.key")
    return context


def shake(server, client, host="localhost"):
    """Let a client connect and hear a word; return what the server knows of it, and the version that they speak."""

    def serve():
        with listener.accept()[0] as accepted:
            accepted.settimeout(PATIENCE)
            with server.wrap_socket(accepted, server_side=True) as encrypted:
                encrypted.sendall(b"x")
                return encrypted.getpeercert(), encrypted.version()

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(PATIENCE)
        served = pool.submit(serve)
        try:
            with (
                socket.create_connection(listener.getsockname(), PATIENCE) as plain,
                client.wrap_socket(plain, server_hostname=host) as encrypted,
            ):
                assert encrypted.recv(1) == b"x"
        finally:
            problem = served.exception(PATIENCE)
        if problem is not None:
            raise problem
        return served.result()


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "::1", "node.example.org", "192.0.2.7", "xn--mnchen-3ya.example"]
)
def test_client_that_trusts_the_ca_connects(files, host):
    assert shake(context_of(files), client_of(files), host) == (None, "TLSv1.3")


def test_client_with_another_name_or_ca_refuses_the_node(files, other):
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake(context_of(files), client_of(files), "other.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(context_of(files), client_of(other))


def test_versions_before_tls_1_2_are_refused(files):
    assert context_of(files).minimum_version is ssl.TLSVersion.TLSv1_2
    client = client_of(files)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake(context_of(files), client)[1] == "TLSv1.2"


# Who a client is by its certificate


def login_of(peer_certificate, *names):
    users = Users({name: Account(User.from_texts(name, ["admin"]), {}) for name in names}, b"s" * 32)
    login = Login(decide_access(users, loopback=True))
    login.log_in_by_certificate(peer_certificate)
    return login


def test_client_certificate_logs_in_its_user(files):
    certificate, _ = shake(context_of(files, client_ca=files / "ca.pem"), client_of(files, certificate=files))
    assert list(list_user_names(certificate)) == ["alice"]
    login = login_of(certificate, "alice", "bob")
    assert (login.state, login.user) == (AuthState.LOGGED_IN, login.access.users.find("alice"))
    login = login_of(certificate, "bob")
    assert (login.state, login.user, login.effective_user) == (AuthState.LOGGED_OUT, None, None)


def test_client_without_a_certificate_logs_in_by_sasl(files):
    certificate, _ = shake(context_of(files, client_ca=files / "ca.pem"), client_of(files))
    assert login_of(certificate, "alice").user is None
    assert login_of(None, "alice").user is None


def test_required_certificate_is_enforced(files):
    required = context_of(files, client_ca=files / "ca.pem", require_client=True)
    assert shake(required, client_of(files, certificate=files))[0]["subject"]
    with pytest.raises(ssl.SSLError):
        shake(required, client_of(files))


def test_certificates_of_another_ca_are_refused(files, other):
    for require in (False, True):
        with pytest.raises(ssl.SSLError):
            shake(
                context_of(files, client_ca=files / "ca.pem", require_client=require),
                client_of(files, certificate=other),
            )


def test_server_certificate_is_no_client_certificate(files):
    client = client_of(files)
    client.load_cert_chain(files / "server.pem", files / "server.key")
    with pytest.raises(ssl.SSLError):
        shake(context_of(files, client_ca=files / "ca.pem"), client)


def test_user_names_of_a_certificate_are_listed():
    certificate = {
        "subject": ((("countryName", "DE"),), (("commonName", "alice"), ("commonName", "al"))),
        "subjectAltName": (("DNS", "host"), ("email", "alice@example.org")),
    }
    assert list(list_user_names(certificate)) == ["alice", "al", "alice@example.org"]
    assert list(list_user_names({})) == []
    user = login_of(certificate, "alice@example.org").user
    assert user is not None
    assert user.name == "alice@example.org"


# Certificates that are there in place of others


@pytest.fixture
def served(files, tmp_path):
    """The TLS of copies of the files, which a test may replace."""
    for name in ("server.pem", "server.key", "ca.pem"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    return ServerTls(tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "ca.pem")


def test_reloaded_certificate_is_used_by_the_next_connection(served, files, other, tmp_path):
    for name in ("server.pem", "server.key"):
        (tmp_path / name).write_bytes((other / name).read_bytes())
    shake(served.context, client_of(files))
    assert not served.reload()
    shake(served.context, client_of(other))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(served.context, client_of(files))


def test_invalid_files_keep_the_previous_certificate(served, files, other, tmp_path):
    for name, content in (
        ("server.pem", (other / "server.pem").read_bytes()),
        ("server.pem", (files / "server.key").read_bytes()),
        ("server.pem", None),
        ("ca.pem", b""),
    ):
        before = (tmp_path / name).read_bytes()
        if content is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError):
            served.reload()
        shake(served.context, client_of(files))
        (tmp_path / name).write_bytes(before)


def test_reload_reports_a_removed_ca(served, files, other, tmp_path):
    ours, theirs = ((one / "ca.pem").read_bytes() for one in (files, other))
    for content, gone in ((ours, False), (ours + theirs, False), (theirs + ours, False), (theirs, True), (ours, True)):
        (tmp_path / "ca.pem").write_bytes(content)
        assert served.reload() == gone


# Files that cannot be used


@pytest.fixture
def locked(files, tmp_path):
    """A key that has a password."""
    key = serialization.load_pem_private_key((files / "server.key").read_bytes(), None)
    path = tmp_path / "locked.key"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    return path


def refusal(certificate, key, **options):
    with pytest.raises(UsageError) as caught:
        make_server_context(certificate, key, **options)
    assert "-----" not in str(caught.value)
    return str(caught.value)


def test_unusable_tls_files_are_refused(files, other, tmp_path, locked):
    certificate, key, none = files / "server.pem", files / "server.key", tmp_path / "none.pem"
    text = tmp_path / "text.pem"
    text.write_text("nothing of the sort")
    empty = tmp_path / "empty.pem"
    empty.touch()
    assert refusal(none, key) == f"{none}: cannot read the TLS certificate: No such file or directory"
    assert refusal(certificate, none) == f"{none}: cannot read the TLS key: No such file or directory"
    assert refusal(certificate, other / "server.key") == f"{other / 'server.key'}: not the key of {certificate}"
    assert refusal(text, key) == f"{text}: no certificate in PEM form"
    assert refusal(key, key) == f"{key}: no certificate in PEM form"
    assert refusal(empty, key) == f"{empty}: no certificate in PEM form"
    assert refusal(tmp_path, key) == f"{tmp_path}: no certificate in PEM form"
    assert refusal(certificate, text) == f"{text}: no private key in PEM form"
    assert refusal(certificate, certificate) == f"{certificate}: no private key in PEM form"
    assert refusal(certificate, locked) == f"{locked}: the key has a password, expected one without"
    assert refusal(certificate, key, client_ca=none).startswith(f"{none}: cannot read the client CA: No such file")
    assert refusal(certificate, key, client_ca=text) == (
        f"{text}: no certificate in PEM form, expected the CA of the clients"
    )
    assert "expected a client CA" in refusal(certificate, key, require_client=True)


# What is made for development


def test_generated_certificates_have_the_expected_fields():
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    made = make_certificates(["::2", "localhost", "a.example."], "Zoë", 30, now)
    found = {name: x509.load_pem_x509_certificate(one.certificate) for name, one in made.items()}
    assert {one.not_valid_after_utc for one in found.values()} == {now + timedelta(days=30)}
    assert len({one.serial_number for one in found.values()}) == 3
    for one in found.values():
        one.verify_directly_issued_by(found["ca"])
    names = found["server"].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "a.example"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1", "::2"]
    assert found["client"].subject.rfc4514_string() == "CN=Zoë"
    assert "KEY" not in repr(made)


WRONG = [
    (["a b"], "u", "host 'a b': expected a name or an address"),
    ([""], "u", "host ''"),
    (["a..b"], "u", "host 'a..b'"),
    (["x" * 300], "u", "host 'xxx"),
    (["1.2.3.4/8"], "u", "host '1.2.3.4/8'"),
    ([], "", "user name of 0 characters"),
    ([], "u" * 65, "user name of 65 characters, a certificate's has 1 to 64"),
]


@pytest.mark.parametrize(("hosts", "user", "said"), WRONG)
def test_invalid_names_are_refused_in_certificates(hosts, user, said):
    with pytest.raises(UsageError) as caught:
        make_certificates(hosts, user, 1, datetime.now(UTC))
    assert said in str(caught.value)
