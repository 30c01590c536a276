"""`penstock serve` with users, TLS and several nodes: its output, its refusals, and the effect of SIGHUP."""

import json
import signal
import ssl

import pytest

from penstock.errors import UsageError
from penstock.node.cluster.topology import parse_places
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Get, GetClusterConfig, SelectBucket
from penstock.wire.messages.sasl import SaslAuth
from tests.cli.test_processes import NO_USERS, read_first_line, run_process, stop_process
from tests.node.test_login import log_in
from tests.node.wire_client import connected
from tests.ports import free_ports


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
        (("--node", "127.0.0.1:1"), "expected this one among them, 127.0.0.1:0"),
        (("--node", "127.0.0.1"), "expected HOST:PORT"),
    ],
)
def test_invalid_options_are_wrong_usage(run, arguments, reason):
    result = run("serve", "--port", 0, *arguments)
    assert result.code == 2
    assert reason in result.err


@pytest.mark.parametrize(
    ("texts", "number", "hosts"),
    [
        (["a:1", "b:2:3"], 1, ["a", "b"]),
        (["[::1]:1:2:3:4", "b:2"], 1, ["::1", "b"]),
    ],
)
def test_places_are_parsed(texts, number, hosts):
    places, this = parse_places(texts, "b", 2)
    assert (this, [place.host for place in places]) == (number, hosts)


@pytest.mark.parametrize("text", ["", ":1", "a", "a:", "a:x", "a:1:2:3:4:5", "::1:1", "[::1]"])
def test_invalid_places_are_refused(text):
    with pytest.raises(UsageError, match="expected"):
        parse_places([text], "a", 1)


@pytest.mark.process
def test_two_nodes_share_a_bucket():
    first, second = free_ports(2)
    nodes = [option for port in (first, second) for option in ("--node", f"127.0.0.1:{port}")]
    common = ("--vbuckets", 8, "--http-port", 0, "--json", *nodes)
    with run_process("serve", "--port", first, *common) as one, run_process("serve", "--port", second, *common) as two:
        for process in (one, two):
            read_first_line(process.stdout)
        maps = []
        for port, own in ((first, 1), (second, 6)):
            with connected(ProcessAddress({"kv_port": port})) as client:
                assert client.status(SelectBucket(key=b"default")) == Status.SUCCESS
                maps.append(json.loads(client.ask(GetClusterConfig()).value)["vBucketServerMap"])
                assert client.set(b"k", vbucket=own).specific == Status.SUCCESS
                assert client.set(b"k", vbucket=7 - own).specific == Status.NOT_MY_VBUCKET
        assert maps[0]["vBucketMap"] == maps[1]["vBucketMap"] == [[0]] * 4 + [[1]] * 4
        assert maps[0]["serverList"] == maps[1]["serverList"]
