"""Commands as processes: their first output, and their end on signals."""

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from types import SimpleNamespace

import pytest

from penstock import Node
from penstock.cli.base.exit_codes import ExitCode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import GetFailoverLog, SeqnoPersistence, Set, unpack_failover_log
from tests.cli.output_checks import check_object, check_output
from tests.node.wire_client import connected
from tests.patience import PATIENCE
from tests.waiting import wait_readable


class _CheckedProcess(subprocess.Popen[str]):
    """A process of penstock. The JSON that `communicate` returns is compared with the schema of the command."""

    def communicate(self, *given, **options):
        out, err = super().communicate(*given, **options)
        assert isinstance(self.args, list)
        check_output(self.args[3:], out)
        return out, err


@contextmanager
def run_process(*arguments, **environment):
    """Run penstock as a process, and kill it if it still runs at the end of the block."""
    process = _CheckedProcess(
        [sys.executable, "-m", "penstock", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def read_first_line(stream, wait=PATIENCE) -> str:
    ready = wait_readable([stream], wait)
    assert ready, "nothing was printed in time"
    return str(stream.readline())


NO_USERS = "penstock: no users: every client on this machine has all privileges; to log in: Administrator, password\n"


def stop_process(process, number) -> tuple[int, str, str]:
    """Send a signal; return the exit code and the rest of the output, without the notice of a node without users."""
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err.removeprefix(NO_USERS)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_prints_its_address_and_ends_cleanly(number, run):
    with run_process(
        "serve", "--port", 0, "--bucket", "beer", "--bucket", "wine", "--vbuckets", 8, "--json"
    ) as process:
        where = json.loads(read_first_line(process.stdout))
        check_object("serve", where)
        assert where.keys() == {"url", "kv_port", "http_port", "dashboard", "pid"}
        assert where["dashboard"] == f"http://127.0.0.1:{where['http_port']}/_penstock"
        assert where["url"] == f"couchbase://127.0.0.1:{where['kv_port']}/beer"
        assert where["pid"] == process.pid
        assert run("stats", "--url", where["url"].replace("beer", "wine"), "--json").json["ep_max_vbuckets"] == "8"
        assert stop_process(process, number) == (0, "", "")


@pytest.mark.process
def test_serve_prints_its_address_as_text():
    with run_process("serve", "--port", 0) as process:
        line = read_first_line(process.stdout)
        assert line.startswith("Serving couchbase://127.0.0.1:")
        assert process.stdout.readline().startswith("Dashboard: http://127.0.0.1:")
        assert "/default" in line
        assert stop_process(process, signal.SIGTERM) == (0, "", "")


@contextmanager
def serving(directory, *options):
    """Run a node with the bucket `beer` on disk; yield the process and its first line of output, parsed."""
    with run_process(
        "serve", "--port", 0, "--bucket", "beer", "--vbuckets", 8, "--data-dir", directory, "--json", *options
    ) as node:
        where = json.loads(read_first_line(node.stdout))
        check_object("serve", where)
        yield node, where


@pytest.mark.process
def test_serve_keeps_its_bucket_in_a_directory(tmp_path, run):
    with serving(tmp_path) as (node, where):
        assert where["data_dir"] == str(tmp_path)
        run("load", "-", "--key", "id", "--url", where["url"], stdin=b'{"id":"a"}\n')
        assert stop_process(node, signal.SIGTERM) == (0, "", "")
    commits = ("--commit-ms", 0.5, "--commit-count", 10)
    kept = ("--purge-age", 60, "--retention", 60, "--retention-bytes", 9999, "--conflict-resolution", "lww")
    with serving(tmp_path, *commits, *kept) as (node, where):
        stats = run("stats", "--url", where["url"], "--json").json
        assert (stats["curr_items"], stats["ep_data_dir"]) == ("1", str(tmp_path / "beer"))
        code, _, err = stop_process(node, signal.SIGTERM)
        assert code == 0
        assert err == "penstock: bucket beer: 1 changes in 0 segments and 1 log files\n"


def test_options_of_a_directory_need_a_directory(run):
    done = run("serve", "--port", 0, "--commit-count", 60)
    assert done.code == 2
    assert "--commit-… needs --data-dir" in " ".join(done.err.split())


@pytest.mark.process
def test_serve_prints_its_directory_as_text(tmp_path):
    with run_process("serve", "--port", 0, "--data-dir", tmp_path / "data") as process:
        assert f", kept in {tmp_path / 'data'}; management on port" in read_first_line(process.stdout)
        assert process.stdout.readline().startswith("Dashboard: ")
        assert stop_process(process, signal.SIGTERM) == (0, "", "")


@pytest.mark.process
def test_killed_node_has_all_changes_that_it_confirmed(tmp_path):
    """It is killed several times in the middle of writes. Its failover logs let consumers continue or roll back."""
    turns, branches = 4, []
    for turn in range(turns):
        with serving(tmp_path) as (node, where):
            address = SimpleNamespace(host="127.0.0.1", kv_port=where["kv_port"])
            with connected(address, "beer") as client:
                for earlier in range(turn):
                    assert client.get(b"confirmed-%d" % earlier).value == b"%d" % earlier
                assert client.set(b"confirmed-%d" % turn, b"%d" % turn).specific == Status.SUCCESS
                seqno = int(client.stats("vbucket-seqno 0")["vb_0:high_seqno"])
                assert client.status(SeqnoPersistence(seqno=seqno)) == Status.SUCCESS
                client.send(*[Set(key=b"unconfirmed", value=bytes(1000))] * 500)
                branches.append(unpack_failover_log(client.ask(GetFailoverLog()).value))
                client.send(*[Set(key=b"unconfirmed", value=bytes(1000))] * 500)
                node.kill()
                node.wait(PATIENCE)
    for older, newer in pairwise(branches):
        assert newer[1:] == older
        assert newer[0].seqno >= older[0].seqno


@pytest.mark.process
def test_full_disk_is_reported_and_waited_for(tmp_path):
    """A limit for the size of files prevents all further writes, like a full disk."""
    with serving(tmp_path) as (node, where):
        address = SimpleNamespace(host="127.0.0.1", kv_port=where["kv_port"])
        assert read_first_line(node.stderr) == NO_USERS
        with connected(address, "beer") as client:
            _, most = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (1, most))
            client.set(b"k", b"in memory")
            assert "bucket beer: the disk does not accept writes: File too large" in read_first_line(node.stderr)
            assert client.set(b"k", b"refused").specific == Status.ETMPFAIL
            resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (most, most))
            assert read_first_line(node.stderr).endswith("all changes are on disk; changes are accepted again\n")
            assert client.set(b"k", b"stored").specific == Status.SUCCESS
            assert stop_process(node, signal.SIGTERM) == (0, "", "")


@pytest.mark.process
def test_directory_in_use_or_with_a_damaged_record_is_refused(tmp_path):
    with serving(tmp_path):
        with run_process("serve", "--port", 0, "--bucket", "beer", "--vbuckets", 8, "--data-dir", tmp_path) as second:
            out, err = second.communicate(timeout=PATIENCE)
        assert (second.returncode, out) == (2, "")
        assert err.startswith(f"penstock: {tmp_path / 'beer'}: in use by process ")
    (tmp_path / "beer" / "bucket.json").write_text("nonsense")
    with run_process("serve", "--port", 0, "--bucket", "beer", "--vbuckets", 8, "--data-dir", tmp_path) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (1, "")
    assert err.count("\n") == 1


@pytest.mark.process
def test_serve_follows_another_node(node, run):
    url = node.url("beer")
    with run_process("serve", "--port", 0, "--follow", url, "--protocol", "upr", "--json") as process:
        where = json.loads(read_first_line(process.stdout))
        check_object("serve", where)
        assert (where["follow"], where["dialect"]) == (url, "upr")
        assert where["url"] == f"couchbase://127.0.0.1:{where['kv_port']}/beer"
        assert run("stats", "follow", "--url", where["url"], "--json").json["url"] == url
        assert stop_process(process, signal.SIGTERM) == (0, "", "")


@pytest.mark.process
def test_serve_ends_when_the_followed_bucket_no_longer_exists():
    with ExitStack() as stack:
        with Node.running(["beer"], 4) as node:
            port = node.kv_port
            url = f"{node.url('beer')}?retrySeconds=0.3"
            process = stack.enter_context(run_process("serve", "--port", 0, "--follow", url, "--json"))
            read_first_line(process.stdout)
        stack.enter_context(Node.running(["wine"], 4, port=port))
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert f"penstock: cannot follow couchbase://127.0.0.1:{port}/beer: " in err
    assert f"(limit 0.3 s); last failure: no bucket 'beer' on couchbase://127.0.0.1:{port}/beer" in err


@pytest.mark.process
def test_serve_waits_for_an_absent_node_until_it_is_stopped():
    with run_process("serve", "--port", 0, "--follow", "couchbase://127.0.0.1:1/beer") as process:
        warning = read_first_line(process.stderr)
        assert "couchbase://127.0.0.1:1/beer does not serve (" in warning
        assert stop_process(process, signal.SIGINT) == (0, "", "")


@pytest.mark.process
def test_port_in_use_is_a_failure_at_run_time(node):
    with run_process("serve", "--port", node.kv_port) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (1, "")
    assert err == f"penstock: cannot listen on 127.0.0.1 port {node.kv_port}: Address already in use\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)]
)
def test_tail_follows_until_it_is_stopped(node, on_beer, number, code):
    on_beer("load", "-", "--key", "id", stdin=b'{"id":"a"}\n')
    with run_process("tail", "--from", "beginning", "--json", PENSTOCK_URL=node.url("beer")) as process:
        assert json.loads(read_first_line(process.stdout))["key"] == "a"
        on_beer("load", "-", "--key", "id", stdin=b'{"id":"b"}\n')
        assert json.loads(read_first_line(process.stdout))["key"] == "b"
        assert stop_process(process, number) == (code, "", "")


@pytest.mark.process
def test_load_prints_its_summary_when_it_is_terminated(node):
    command = ("load", "-", "--key", "id", "--on-error", "skip", "--json")
    with run_process(*command, PENSTOCK_URL=node.url("beer")) as process:
        process.stdin.write('{"id": 1}\nnonsense\n')
        process.stdin.flush()
        assert "line 2" in read_first_line(process.stderr)
        code, out, err = stop_process(process, signal.SIGTERM)
    assert (code, err) == (143, "")
    assert json.loads(out)["loaded"] == 0


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_workload_prints_a_summary_when_it_is_stopped(node, number):
    with (
        run_process("tail", "--json", "--from", "beginning", PENSTOCK_URL=node.url("beer")) as watching,
        run_process("workload", "--json", "--mix", "1:0:1", PENSTOCK_URL=node.url("beer")) as process,
    ):
        read_first_line(watching.stdout)  # the workload has started
        code, out, err = stop_process(process, number)
    assert (code, err) == (0, "")
    assert json.loads(out)["changes"] > 0


@pytest.mark.process
def test_absent_node_is_reported_once_and_nothing_is_lost(run):
    with Node.running(["beer"], vbuckets=8) as node:
        port, url = node.kv_port, node.url("beer")
    with run_process("load", "-", "--key", "id", "--json", PENSTOCK_URL=url) as process:
        warning = read_first_line(process.stderr)
        assert warning.startswith(f"penstock: {url} does not serve (")
        assert warning.endswith("retrying for up to 30 s\n")
        with Node.running(["beer"], vbuckets=8, port=port):
            out, err = process.communicate('{"id":1}\n{"id":2}\n', timeout=PATIENCE)
            assert (process.returncode, err) == (0, "")
            assert json.loads(out)["loaded"] == 2
            assert run("stats", "--url", url, "--json").json["curr_items"] == "2"


@pytest.mark.process
def test_workload_is_interrupted_while_it_waits_for_a_node():
    with Node.running(["beer"], vbuckets=8) as node:
        url = node.url("beer")
    with run_process("workload", PENSTOCK_URL=url) as process:
        read_first_line(process.stderr)
        assert stop_process(process, signal.SIGINT) == (130, "", "")


@pytest.mark.process
@pytest.mark.parametrize("command", ["replicate", "xdcr"])
def test_replication_that_is_stopped_before_its_end_is_no_success(node, command):
    with Node.running(["beer"], vbuckets=8) as other:
        url = other.url("beer")
    with run_process(command, "--from", url, "--to", node.url("beer"), "--until", "now") as process:
        read_first_line(process.stderr)  # the source does not serve
        code, _, _ = stop_process(process, signal.SIGTERM)
    assert code == ExitCode.TERMINATED
