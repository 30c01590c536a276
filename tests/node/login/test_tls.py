"""TLS with real certificates over real sockets, and its certificate and key files."""

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


def write_certificates(directory, user="alice", hosts=(), days=7):
    directory.mkdir(exist_ok=True)
    for name, made in make_certificates(hosts, user, days, datetime.now(UTC)).items():
        (directory / f"{name}.pem").write_bytes(made.certificate)
        (directory / f"{name}.key").write_bytes(made.key)
    return directory


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    hosts = ["node.example.org", "192.0.2.7", "münchen.example"]
    return write_certificates(tmp_path_factory.mktemp("tls"), hosts=hosts)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return write_certificates(tmp_path_factory.mktemp("other"))


def make_context(files, **options):
    return make_server_context(files / "server.pem", files / "server.key", **options)


def make_client_context(files, *, certificate=None):
    """Make a client context that trusts the CA of a directory.

    Args:
        files: the directory with the CA.
        certificate: the directory with the client certificate, or None for a client without one.
    """
    context = ssl.create_default_context(cafile=files / "ca.pem")
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default since Python 3.13
    if certificate is not None:
        context.load_cert_chain(certificate / "client.pem", certificate / "client.key")
    return context


def run_handshake(server, client, host="localhost"):
    """Connect a client, send it a byte, and return the client certificate that the server saw and the TLS version."""

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
    assert run_handshake(make_context(files), make_client_context(files), host) == (None, "TLSv1.3")


def test_client_with_another_name_or_ca_refuses_the_node(files, other):
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        run_handshake(make_context(files), make_client_context(files), "other.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        run_handshake(make_context(files), make_client_context(other))


def test_versions_before_tls_1_2_are_refused(files):
    assert make_context(files).minimum_version is ssl.TLSVersion.TLSv1_2
    client = make_client_context(files)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert run_handshake(make_context(files), client)[1] == "TLSv1.2"


# Users of client certificates


def log_in_with(peer_certificate, *names):
    users = Users({name: Account(User.from_texts(name, ["admin"]), {}) for name in names}, b"s" * 32)
    login = Login(decide_access(users, loopback=True))
    login.log_in_by_certificate(peer_certificate)
    return login


def test_client_certificate_logs_in_its_user(files):
    server = make_context(files, client_ca=files / "ca.pem")
    certificate, _ = run_handshake(server, make_client_context(files, certificate=files))
    assert list(list_user_names(certificate)) == ["alice"]
    login = log_in_with(certificate, "alice", "bob")
    assert (login.state, login.user) == (AuthState.LOGGED_IN, login.access.users.find("alice"))
    login = log_in_with(certificate, "bob")
    assert (login.state, login.user, login.effective_user) == (AuthState.LOGGED_OUT, None, None)


def test_client_without_a_certificate_logs_in_by_sasl(files):
    certificate, _ = run_handshake(make_context(files, client_ca=files / "ca.pem"), make_client_context(files))
    assert log_in_with(certificate, "alice").user is None
    assert log_in_with(None, "alice").user is None


def test_required_certificate_is_enforced(files):
    required = make_context(files, client_ca=files / "ca.pem", require_client=True)
    assert run_handshake(required, make_client_context(files, certificate=files))[0]["subject"]
    with pytest.raises(ssl.SSLError):
        run_handshake(required, make_client_context(files))


def test_certificates_of_another_ca_are_refused(files, other):
    for require in (False, True):
        with pytest.raises(ssl.SSLError):
            run_handshake(
                make_context(files, client_ca=files / "ca.pem", require_client=require),
                make_client_context(files, certificate=other),
            )


def test_server_certificate_is_no_client_certificate(files):
    client = make_client_context(files)
    client.load_cert_chain(files / "server.pem", files / "server.key")
    with pytest.raises(ssl.SSLError):
        run_handshake(make_context(files, client_ca=files / "ca.pem"), client)


def test_user_names_of_a_certificate_are_listed():
    certificate = {
        "subject": ((("countryName", "DE"),), (("commonName", "alice"), ("commonName", "al"))),
        "subjectAltName": (("DNS", "host"), ("email", "alice@example.org")),
    }
    assert list(list_user_names(certificate)) == ["alice", "al", "alice@example.org"]
    assert list(list_user_names({})) == []
    user = log_in_with(certificate, "alice@example.org").user
    assert user is not None
    assert user.name == "alice@example.org"


# Replaced certificates


@pytest.fixture
def server_tls(files, tmp_path):
    """Make the server TLS from copies of the files, which a test may replace."""
    for name in ("server.pem", "server.key", "ca.pem"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    return ServerTls(tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "ca.pem")


def test_reloaded_certificate_is_used_by_the_next_connection(server_tls, files, other, tmp_path):
    for name in ("server.pem", "server.key"):
        (tmp_path / name).write_bytes((other / name).read_bytes())
    run_handshake(server_tls.context, make_client_context(files))
    assert not server_tls.reload()
    run_handshake(server_tls.context, make_client_context(other))
    with pytest.raises(ssl.SSLCertVerificationError):
        run_handshake(server_tls.context, make_client_context(files))


def test_invalid_files_keep_the_previous_certificate(server_tls, files, other, tmp_path):
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
            server_tls.reload()
        run_handshake(server_tls.context, make_client_context(files))
        (tmp_path / name).write_bytes(before)


def test_reload_reports_a_removed_ca(server_tls, files, other, tmp_path):
    ours, theirs = ((one / "ca.pem").read_bytes() for one in (files, other))
    steps = ((ours, False), (ours + theirs, False), (theirs + ours, False), (theirs, True), (ours, True))
    for content, is_removed in steps:
        (tmp_path / "ca.pem").write_bytes(content)
        assert server_tls.reload() == is_removed


# Files that cannot be used


@pytest.fixture
def protected_key(files, tmp_path):
    """Write a key that is encrypted with a password."""
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


def get_refusal(certificate, key, **options):
    with pytest.raises(UsageError) as caught:
        make_server_context(certificate, key, **options)
    assert "-----" not in str(caught.value)
    return str(caught.value)


def test_unusable_tls_files_are_refused(files, other, tmp_path, protected_key):
    certificate, key, none = files / "server.pem", files / "server.key", tmp_path / "none.pem"
    text = tmp_path / "text.pem"
    text.write_text("nothing of the sort")
    empty = tmp_path / "empty.pem"
    empty.touch()
    assert get_refusal(none, key) == f"{none}: cannot read the TLS certificate: No such file or directory"
    assert get_refusal(certificate, none) == f"{none}: cannot read the TLS key: No such file or directory"
    assert get_refusal(certificate, other / "server.key") == f"{other / 'server.key'}: not the key of {certificate}"
    assert get_refusal(text, key) == f"{text}: no certificate in PEM form"
    assert get_refusal(key, key) == f"{key}: no certificate in PEM form"
    assert get_refusal(empty, key) == f"{empty}: no certificate in PEM form"
    assert get_refusal(tmp_path, key) == f"{tmp_path}: no certificate in PEM form"
    assert get_refusal(certificate, text) == f"{text}: no private key in PEM form"
    assert get_refusal(certificate, certificate) == f"{certificate}: no private key in PEM form"
    assert get_refusal(certificate, protected_key) == f"{protected_key}: the key has a password, expected one without"
    assert get_refusal(certificate, key, client_ca=none).startswith(f"{none}: cannot read the client CA: No such file")
    assert get_refusal(certificate, key, client_ca=text) == (
        f"{text}: no certificate in PEM form, expected the CA of the clients"
    )
    assert "expected a client CA" in get_refusal(certificate, key, require_client=True)


# Generated certificates for development


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


@pytest.mark.parametrize(("hosts", "user", "expected"), WRONG)
def test_invalid_names_are_refused_in_certificates(hosts, user, expected):
    with pytest.raises(UsageError) as caught:
        make_certificates(hosts, user, 1, datetime.now(UTC))
    assert expected in str(caught.value)
