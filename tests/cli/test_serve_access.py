"""`penstock serve` with users, TLS and several nodes: its output, its refusals, and the effect of SIGHUP."""

import json
import signal
import ssl

import pytest

from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Get
from penstock.wire.messages.sasl import SaslAuth
from tests.cli.test_processes import NO_USERS, read_first_line, run_process, stop_process
from tests.node.test_login import log_in
from tests.node.wire_client import connected


class ProcessAddress:
    """The address of a node in a process of its own, with the attributes that WireClient reads.

    Args:
        ports: `kv_port`, and `tls_port` if there is one, as in the first line that the node prints.
    """

    def __init__(self, ports):
        self.host, self.kv_port, self.tls_port = "127.0.0.1", ports["kv_port"], ports.get("tls_port")


@pytest.fixture
def users(run, tmp_path):
    path = tmp_path / "users.json"
    (tmp_path / "password").write_text("alice's\n")
    made = ("user", "add", "alice", "--role", "admin", "--users", path, "--password-file", tmp_path / "password")
    assert run(*made).code == 0
    return path


@pytest.mark.process
def test_node_without_users_prints_its_login():
    with run_process("serve", "--port", 0, "--vbuckets", 1, "--json") as process:
        ports = json.loads(read_first_line(process.stdout))
        assert ports["http_port"] > 0
        assert read_first_line(process.stderr) == NO_USERS
        assert stop_process(process, signal.SIGTERM) == (0, "", "")


@pytest.mark.process
def test_users_log_in_over_tls_and_are_read_again_on_sighup(run, users, tmp_path):
    tls = tmp_path / "tls"
    assert run("tls", "init", tls, "--user", "alice").code == 0
    files = ("--tls-port", 0, "--tls-cert", tls / "server.pem", "--tls-key", tls / "server.key")
    with run_process("serve", "--port", 0, "--vbuckets", 1, "--users", users, *files, "--json") as process:
        address = ProcessAddress(json.loads(read_first_line(process.stdout)))
        context = ssl.create_default_context(cafile=tls / "ca.pem")
        with connected(address) as plain, connected(address, tls=context) as encrypted:
            assert plain.status(Get(key=b"k")) == Status.EACCESS
            assert log_in(plain, "alice") == Status.SUCCESS
            assert encrypted.status(SaslAuth(key=b"PLAIN", value=b"\0alice\0alice's")) == Status.SUCCESS
        assert run("user", "remove", "alice", "--users", users).code == 0
        process.send_signal(signal.SIGHUP)
        with connected(address) as plain:
            while log_in(plain, "alice") != Status.AUTH_ERROR:
                pass
        code, _, err = stop_process(process, signal.SIGTERM)
    assert (code, "alice's" in err) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--host", "0.0.0.0"), "without users a node listens on a loopback address only"),
        (("--tls-port", 0), "a port for TLS without a certificate"),
        (("--tls-cert", "nowhere.pem", "--tls-key", "nowhere.key", "--tls-port", 0), "nowhere.pem"),
        (("--users", "nowhere.json"), "nowhere.json: no such file"),
        (("--mechanism", "MD5"), "expected some of SCRAM-SHA512"),
    ],
)
def test_invalid_options_are_wrong_usage(run, arguments, reason):
    result = run("serve", "--port", 0, *arguments)
    assert result.code == 2
    assert reason in result.err
