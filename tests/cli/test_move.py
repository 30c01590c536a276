"""The commands `penstock move` and `penstock failover`."""

from datetime import UTC, datetime

import pytest

from penstock import Node
from penstock.node.auth.certificates import make_certificates
from tests.cli.test_replicate import read_keys

KEYS = sorted(str(number) for number in range(100))


def list_owned(run, node):
    """Return the vbuckets that are active on a node."""
    states = run("stats", "vbucket", "--url", node.url("beer"), "--json").json
    return sorted(int(name.removeprefix("vb_")) for name, state in states.items() if state == "active")


def test_vbuckets_move_to_the_other_node(run, source, target):
    urls = ("--from", source.url("beer"), "--to", target.url("beer"))
    done = run("move", *urls, "--vbucket", "3", "--vbucket", "5", "--vbucket", "3")
    assert (done.code, done.lines[-1]) == (0, "2 vbuckets moved")
    assert done.lines[0].startswith(f"vbucket 3: 127.0.0.1:{source.kv_port} -> 127.0.0.1:{target.kv_port}, takeover ")
    assert (list_owned(run, target), 3 in list_owned(run, source)) == ([3, 5], False)
    assert read_keys(run, source) == read_keys(run, target) == KEYS


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--vbucket", "1"], "Missing option '--to'"),
        (["--to", "couchbase://127.0.0.1:1/beer"], "Missing option '--vbucket'"),
        (["--vbucket", "65536", "--to", "couchbase://127.0.0.1:1/beer"], "65536"),
    ],
)
def test_wrong_options_of_move_are_explained(run, source, options, text):
    done = run("move", "--from", source.url("beer"), *options)
    assert (done.code, done.out) == (2, "")
    assert text in done.err


def test_vbucket_that_has_moved_is_not_moved_again(run, source, target):
    urls = ("--from", source.url("beer"), "--to", target.url("beer"))
    assert run("move", *urls, "--vbucket", "3").lines[-1] == "1 vbuckets moved"
    again = run("move", *urls, "--vbucket", "3")
    assert (again.code, again.lines) == (0, ["0 vbuckets moved"])
    (line,) = run("move", *urls, "--vbucket", "4", "--json").json_lines
    assert line.keys() == {"vbucket", "from", "to", "seconds"}


def test_vbucket_of_a_third_node_is_not_moved(run, source, target):
    with Node.running(["beer"], vbuckets=16) as third:
        assert run("move", "--vbucket", "3", "--from", source.url("beer"), "--to", target.url("beer")).code == 0
        done = run("move", "--vbucket", "3", "--from", source.url("beer"), "--to", third.url("beer"))
        assert (done.code, done.out) == (2, "")
        assert "vbucket 3 is missing at" in done.err


def test_failover_promotes_the_replicas(run, target):
    with Node.running(["beer"], vbuckets=16) as lost:
        lines = b"".join(b'{"id": %d}\n' % number for number in range(100))
        run("load", "-", "--key", "id", "--url", lost.url("beer"), stdin=lines)
        run("replicate", "--from", lost.url("beer"), "--to", target.url("beer"), "--until", "now")
        url = lost.url("beer")
    done = run("failover", "--node", url, "--to", target.url("beer"), "--lose")
    assert (done.code, done.out) == (0, f"127.0.0.1:{target.kv_port}: vbuckets 0-15 promoted\n")
    assert list_owned(run, target) == [*range(16)]
    assert read_keys(run, target) == KEYS
    again = run("failover", "--node", url, "--to", target.url("beer"), "--lose", "--json")
    assert again.json == {"promoted": {}, "lost": [], "risks": {}, "reachable": False}


def test_lost_vbuckets_end_a_failover_with_an_error(run, source, target):
    half = [option for vbucket in range(8) for option in ("--vbucket", vbucket)]
    run("move", *half, "--from", source.url("beer"), "--to", target.url("beer"))
    done = run("failover", "--node", source.url("beer"), "--to", target.url("beer"), "--lose", "--json")
    assert (done.code, len(done.json["lost"]), done.json["reachable"]) == (1, 8, True)
    assert "no replica of vbuckets" in done.err


@pytest.fixture
def tls_nodes(tmp_path):
    """Two nodes with TLS, and the option of a connection string that trusts them."""
    for name, made in make_certificates([], "ada", 2, datetime.now(UTC)).items():
        (tmp_path / f"{name}.pem").write_bytes(made.certificate)
        (tmp_path / f"{name}.key").write_bytes(made.key)
    options = {"certificate": tmp_path / "server.pem", "key": tmp_path / "server.key", "tls_port": 0}
    with (
        Node.running(["beer"], vbuckets=16, **options) as first,
        Node.running(["beer"], vbuckets=16, **options) as second,
    ):
        yield first, second, f"ca={tmp_path / 'ca.pem'}"


def test_vbuckets_move_and_fail_over_with_tls(run, tmp_path, tls_nodes):
    first, second, trust = tls_nodes
    urls = [f"couchbases://127.0.0.1:{node.tls_port}/beer?{trust}" for node in (first, second)]
    lines = b"".join(b'{"id": %d}\n' % number for number in range(100))
    assert run("load", "-", "--key", "id", "--url", urls[0], stdin=lines).code == 0
    assert run("replicate", "--from", urls[0], "--to", urls[1], "--vbucket", "2", "--until", "now").code == 0
    file = tmp_path / "lab.toml"
    nodes = "".join(f'[[node]]\nurl = "{url.replace("/beer", "/")}"\n' for url in urls)
    file.write_text(f'{nodes}[[bucket]]\nname = "beer"\nreplicas = 0\n')
    moved = run("cluster", "rebalance", file, "--json")
    assert (moved.code, sum("vbucket" in line for line in moved.json_lines)) == (0, 8), moved.err
    assert run("replicate", "--from", urls[0], "--to", urls[1], "--until", "now").code == 0
    failed = run("failover", "--node", urls[0], "--to", urls[1], "--lose", "--json")
    assert (failed.code, failed.json["lost"], failed.json["reachable"]) == (0, [], True)
    assert [*failed.json["promoted"]] == [f"127.0.0.1:{second.tls_port}"]
    assert read_keys(run, second) == KEYS
    shown = run("tail", "--from", "beginning", "--until", "now", "--json", "--url", urls[1])
    assert len(shown.json_lines) == 100


def test_node_of_the_map_under_another_name_is_refused(run, source, target):
    run("move", "--vbucket", "3", "--from", source.url("beer"), "--to", target.url("beer"))
    unknown = target.url("beer").replace("127.0.0.1", "localhost")
    done = run("move", "--vbucket", "4", "--from", source.url("beer"), "--to", unknown)
    assert done.code == 2
    assert "are the same node, expected different nodes" in done.err


@pytest.mark.parametrize(
    "command",
    [
        ("replicate", "--from", "ONE", "--to", "OTHER", "--overwrite", "--until", "now"),
        ("replicate", "--from", "ONE", "--to", "OTHER", "--until", "now"),
        ("move", "--vbucket", "3", "--from", "ONE", "--to", "OTHER"),
        ("failover", "--node", "OTHER", "--to", "ONE", "--lose"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("count", [0, 20])
def test_one_node_under_two_names_is_refused(run, command, count):
    with Node.running(["beer"], vbuckets=16) as node:
        names = {"ONE": node.url("beer"), "OTHER": node.url("beer").replace("127.0.0.1", "localhost")}
        lines = b"".join(b'{"id": %d}\n' % number for number in range(count))
        run("load", "-", "--key", "id", "--url", node.url("beer"), stdin=lines)
        done = run(*(names.get(word, word) for word in command))
        assert (done.code, "are the same node, expected different nodes" in done.err) == (2, True), done.err
        assert list_owned(run, node) == [*range(16)]
        assert len(read_keys(run, node)) == count
