"""java-dcp-client with what the Kafka and Spark connectors ask of it: persistence polling and flow control."""

import subprocess
from dataclasses import replace

import pytest

from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import SelectBucket
from tests.compat.installed import java_program
from tests.compat.running import Program
from tests.compat.serving import Serving
from tests.node.test_login import log_in
from tests.node.wire_client import connected
from tests.patience import PATIENCE

VBUCKETS = 16
DOCUMENTS = 200


def write(client, *keys):
    for number, key in enumerate(keys):
        assert client.set(key.encode(), b'{"n":1}', vbucket=number % VBUCKETS).specific == Status.SUCCESS


def command(serving, until):
    return [*java_program("Dcp"), serving.url, serving.user, serving.password, "default", until]


def read_until(program, key):
    """Read what the program prints until it has received this document, and return that."""
    return program.read_until(lambda lines: f"mutation _default._default.{key} json" in lines)


@pytest.fixture(params=[False, True], ids=["in memory", "on disk"])
def serving(request, tmp_path):
    options = ["--data-dir", tmp_path / "data"] if request.param else []
    with Serving.running("--vbuckets", VBUCKETS, *options) as serving:
        yield serving


def test_consumer_reads_a_bucket_up_to_now(serving):
    with connected(serving) as client:
        keys = [f"k{number}" for number in range(DOCUMENTS)]
        write(client, *keys)
        client.delete(b"k0")
    done = subprocess.run(command(serving, "now"), stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
    events = {tuple(line.split()[:2]) for line in done.stdout.splitlines()} - {("streaming", "default")}
    expected = {("mutation", f"_default._default.{key}") for key in keys[1:]}
    assert events == expected | {("deletion", "_default._default.k0")}


def test_consumer_follows_changes(serving):
    with Program.running(command(serving, "never")) as program, connected(serving) as client:
        program.read_until(lambda lines: "streaming default" in lines)
        for key in ("a", "b", "c"):
            write(client, key)
            read_until(program, key)


def test_consumer_without_its_role_gets_no_changes(tmp_path):
    """The client reports why its streams end, asks for them again, and gives up with what the node answers."""
    users = tmp_path / "users.json"
    with change_users(users) as accounts:
        accounts["root"] = make_account(User.from_texts("root", ["admin"]), "root's")
        accounts["alice"] = make_account(User.from_texts("alice", ["data_dcp_reader[default]"]), "alice's")
    with Serving.running("--vbuckets", VBUCKETS, "--users", users) as serving, connected(serving) as client:
        assert log_in(client, "root") == Status.SUCCESS
        assert client.status(SelectBucket(key=b"default")) == Status.SUCCESS
        with Program.running([*java_program("Dcp"), serving.url, "alice", "alice's", "default", "never"]) as program:
            program.read_until(lambda lines: "streaming default" in lines)
            write(client, "before")
            read_until(program, "before")
            with change_users(users) as accounts:
                accounts["alice"] = replace(
                    accounts["alice"], user=User.from_texts("alice", ["data_dcp_reader[default:other]"])
                )
            lines = program.read_until(lambda lines: any("LOST_PRIVILEGES" in line for line in lines))
            write(client, *(f"after{number}" for number in range(VBUCKETS)))
            rest, status = program.read_rest()
        assert status == 1
        assert {line.split()[0] for line in (*lines, *rest)} == {"end"}


def test_restarted_node_rolls_the_consumer_back():
    with Serving.running("--vbuckets", VBUCKETS) as serving, Program.running(command(serving, "never")) as program:
        with connected(serving) as client:
            write(client, "lost")
        read_until(program, "lost")
        serving.kill()
        serving.start()
        with connected(serving) as client:
            write(client, "kept")
        lines = read_until(program, "kept")
    assert "rollback 0 0" in lines
