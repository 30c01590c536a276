"""`penstock serve` with users, TLS, several nodes: what is printed, what is refused, what SIGHUP does."""

import json
import signal
import ssl

import pytest

from penstock.errors import UsageError
from penstock.node.cluster.topology import parse_places
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Get, GetClusterConfig, SelectBucket
from penstock.wire.messages.sasl import SaslAuth
from tests.cli.test_processes import NO_USERS, ended, first_line, started
from tests.node.test_login import log_in
from tests.node.wire_client import connected
from tests.ports import free_ports


class Here:
    """Where a node that runs as a process is, as WireClient wants to know it."""

    def __init__(self, said):
        self.host, self.kv_port, self.tls_port = "127.0.0.1", said["kv_port"], said.get("tls_port")


@pytest.fixture
def users(run, tmp_path):
    path = tmp_path / "users.json"
    (tmp_path / "password").write_text("alice's\n")
    made = ("user", "add", "alice", "--role", "admin", "--users", path, "--password-file", tmp_path / "password")
    assert run(*made).code == 0
    return path


@pytest.mark.process
def test_without_users_it_says_who_can_log_in():
    with started("serve", "--port", 0, "--vbuckets", 1, "--json") as process:
        said = json.loads(first_line(process.stdout))
        assert said["http_port"] > 0
        assert first_line(process.stderr) == NO_USERS
        assert ended(process, signal.SIGTERM) == (0, "", "")


@pytest.mark.process
def test_users_and_tls(run, users, tmp_path):
    tls = tmp_path / "tls"
    assert run("tls", "init", tls, "--user", "alice").code == 0
    files = ("--tls-port", 0, "--tls-cert", tls / "server.pem", "--tls-key", tls / "server.key")
    with started("serve", "--port", 0, "--vbuckets", 1, "--users", users, *files, "--json") as process:
        here = Here(json.loads(first_line(process.stdout)))
        context = ssl.create_default_context(cafile=tls / "ca.pem")
        with connected(here) as plain, connected(here, tls=context) as encrypted:
            assert plain.status(Get(key=b"k")) == Status.EACCESS
            assert log_in(plain, "alice") == Status.SUCCESS
            assert encrypted.status(SaslAuth(key=b"PLAIN", value=b"\0alice\0alice's")) == Status.SUCCESS
        assert run("user", "remove", "alice", "--users", users).code == 0
        process.send_signal(signal.SIGHUP)
        with connected(here) as plain:
            while log_in(plain, "alice") != Status.AUTH_ERROR:
                pass
        code, _, err = ended(process, signal.SIGTERM)
    assert (code, "alice's" in err) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
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
def test_what_cannot_be(run, arguments, said):
    result = run("serve", "--port", 0, *arguments)
    assert result.code == 2
    assert said in result.err


@pytest.mark.parametrize(
    ("texts", "number", "hosts"),
    [
        (["a:1", "b:2:3"], 1, ["a", "b"]),
        (["[::1]:1:2:3:4", "b:2"], 1, ["::1", "b"]),
    ],
)
def test_places(texts, number, hosts):
    places, this = parse_places(texts, "b", 2)
    assert (this, [place.host for place in places]) == (number, hosts)


@pytest.mark.parametrize("text", ["", ":1", "a", "a:", "a:x", "a:1:2:3:4:5", "::1:1", "[::1]"])
def test_places_that_are_none(text):
    with pytest.raises(UsageError, match="expected"):
        parse_places([text], "a", 1)


@pytest.mark.process
def test_two_nodes_share_a_bucket():
    first, second = free_ports(2)
    nodes = [option for port in (first, second) for option in ("--node", f"127.0.0.1:{port}")]
    common = ("--vbuckets", 8, "--http-port", 0, "--json", *nodes)
    with started("serve", "--port", first, *common) as one, started("serve", "--port", second, *common) as two:
        for process in (one, two):
            first_line(process.stdout)
        maps = []
        for port, own in ((first, 1), (second, 6)):
            here = Here({"kv_port": port})
            with connected(here) as client:
                assert client.status(SelectBucket(key=b"default")) == Status.SUCCESS
                maps.append(json.loads(client.ask(GetClusterConfig()).value)["vBucketServerMap"])
                assert client.set(b"k", vbucket=own).specific == Status.SUCCESS
                assert client.set(b"k", vbucket=7 - own).specific == Status.NOT_MY_VBUCKET
        assert maps[0]["vBucketMap"] == maps[1]["vBucketMap"] == [[0]] * 4 + [[1]] * 4
        assert maps[0]["serverList"] == maps[1]["serverList"]
