"""java-dcp-client with the settings of the Kafka and Spark connectors: persistence polling and flow control."""

import subprocess
from dataclasses import replace

import pytest

from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import SelectBucket
from tests.compat.installed import make_java_command
from tests.compat.running import Program
from tests.compat.serving import Serving
from tests.node.test_login import log_in
from tests.node.wire_client import connected
from tests.patience import PATIENCE

VBUCKETS = 16
DOCUMENTS = 200


def write_documents(client, *keys):
    for number, key in enumerate(keys):
        assert client.set(key.encode(), b'{"n":1}', vbucket=number % VBUCKETS).specific == Status.SUCCESS


def make_command(serving, stop):
    return [*make_java_command("Dcp"), serving.url, serving.user, serving.password, "default", stop, "persisted"]


def read_mutation(program, key):
    """Return the new lines of the program, up to the mutation of this document."""
    return program.read_until(
        lambda lines: any(line.startswith(f"mutation _default._default.{key} json ") for line in lines)
    )


@pytest.fixture(params=[False, True], ids=["in memory", "on disk"])
def serving(request, tmp_path):
    options = ["--data-dir", tmp_path / "data"] if request.param else []
    with Serving.running("--vbuckets", VBUCKETS, *options) as serving:
        yield serving


def test_consumer_reads_a_bucket_up_to_now(serving):
    with connected(serving) as client:
        keys = [f"k{number}" for number in range(DOCUMENTS)]
        write_documents(client, *keys)
        client.delete(b"k0")
    done = subprocess.run(make_command(serving, "now"), stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
    events = {tuple(line.split()[:2]) for line in done.stdout.splitlines()} - {("streaming", "default")}
    expected = {("mutation", f"_default._default.{key}") for key in keys[1:]}
    assert events == expected | {("deletion", "_default._default.k0")}


def test_consumer_follows_changes(serving):
    with Program.running(make_command(serving, "never")) as program, connected(serving) as client:
        program.read_until(lambda lines: "streaming default" in lines)
        for key in ("a", "b", "c"):
            write_documents(client, key)
            read_mutation(program, key)


def test_consumer_without_its_role_gets_no_changes(tmp_path):
    """The client reports why its streams end, requests them again, and fails with the node's status."""
    users = tmp_path / "users.json"
    with change_users(users) as accounts:
        accounts["root"] = make_account(User.from_texts("root", ["admin"]), "root's")
        accounts["alice"] = make_account(User.from_texts("alice", ["data_dcp_reader[default]"]), "alice's")
    with Serving.running("--vbuckets", VBUCKETS, "--users", users) as serving, connected(serving) as client:
        assert log_in(client, "root") == Status.SUCCESS
        assert client.status(SelectBucket(key=b"default")) == Status.SUCCESS
        with Program.running(
            [*make_java_command("Dcp"), serving.url, "alice", "alice's", "default", "never", "persisted"]
        ) as program:
            program.read_until(lambda lines: "streaming default" in lines)
            write_documents(client, "before")
            read_mutation(program, "before")
            with change_users(users) as accounts:
                accounts["alice"] = replace(
                    accounts["alice"], user=User.from_texts("alice", ["data_dcp_reader[default:other]"])
                )
            lines = program.read_until(lambda lines: any("LOST_PRIVILEGES" in line for line in lines))
            write_documents(client, *(f"after{number}" for number in range(VBUCKETS)))
            rest, status = program.read_rest()
        assert status == 1
        assert {line.split()[0] for line in (*lines, *rest)} == {"end"}


def test_restarted_node_rolls_the_consumer_back():
    with Serving.running("--vbuckets", VBUCKETS) as serving, Program.running(make_command(serving, "never")) as program:
        with connected(serving) as client:
            write_documents(client, "lost")
        read_mutation(program, "lost")
        serving.kill()
        serving.start()
        with connected(serving) as client:
            write_documents(client, "kept")
        lines = read_mutation(program, "kept")
    assert "rollback 0 0" in lines
