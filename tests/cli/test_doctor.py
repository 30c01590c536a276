"""`penstock doctor`: findings about servers of many kinds, exit codes, and no secret in any of them."""

import asyncio

import pytest

from penstock import Node
from penstock.cli.doctor.finding import FindingState
from penstock.cli.doctor.server_diagnosis import check_server
from penstock.client.connect.address import parse_address
from penstock.client.login.credentials import Credentials
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.node.transport.machine import Machine
from tests.client.old_server import COUCHBASE_2_5, COUCHBASE_3_1, OldServer
from tests.client.restarting import STAGES
from tests.client.scripted_release import RELEASES, ReleaseServer
from tests.ports import free_ports

SECRET = "hunter2hunter2"
VBUCKETS = 4
S = FindingState


def examine(url, login=None):
    """Return the findings about a server: check -> finding."""

    async def collect():
        return [each async for each in check_server(parse_address(url, login))]

    found = asyncio.run(collect())
    assert SECRET not in repr(found)
    return {each.check: each for each in found}


def list_states(found, state):
    return {check for check, each in found.items() if each.state is state}


@pytest.fixture(scope="module")
def healthy():
    with Node.running(["beer"], VBUCKETS) as node:
        yield node


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    users = tmp_path_factory.mktemp("users") / "users.json"
    with change_users(users) as accounts:
        for name, roles in {"writer": ["data_writer[beer]"], "stranger": ["data_reader[wine]"]}.items():
            accounts[name] = make_account(User.from_texts(name, roles), SECRET, 4096)
    with Node.running(["beer", "wine"], VBUCKETS, users=users) as node:
        yield node


def test_own_node_has_no_problem_and_lacks_nothing(healthy):
    found = examine(healthy.url("beer"))
    assert {each.state for each in found.values()} == {S.OK}
    assert found.keys() >= {"reachable", "clock", "dialects", "stream settings", "features", "right to write documents"}
    assert found["version"].text.startswith("Penstock ")


def test_closed_port_is_a_problem():
    port = free_ports(1)[0]
    (problem,) = examine(f"couchbase://127.0.0.1:{port}/beer").values()
    assert (problem.check, problem.state) == ("reachable", S.PROBLEM)
    assert problem.text == f"127.0.0.1:{port}: Connection refused"
    assert "start the server" in problem.advice


def test_closed_port_of_one_of_two_hosts_is_a_warning(healthy):
    found = examine(f"couchbase://127.0.0.1:{free_ports(1)[0]},127.0.0.1:{healthy.kv_port}/beer")
    assert list_states(found, S.PROBLEM) == set()
    assert "127.0.0.1" in found["version"].topic


@pytest.mark.parametrize(
    ("make_url", "login", "check", "text"),
    [
        (lambda node: node.url("beer"), None, "login", "a client without login may not access it"),
        (
            lambda node: node.url("beer"),
            Credentials("writer", f"not {SECRET}"),
            "login",
            "refused the login of 'writer'",
        ),
        (lambda node: node.url("beer"), Credentials("stranger", SECRET), "login", "user 'stranger' may not access it"),
        (lambda node: f"couchbase://127.0.0.1:{node.http_port}/beer", None, "server", "speaks HTTP"),
    ],
)
def test_refused_client_gets_the_reason_and_advice(guarded, make_url, login, check, text):
    (problem,) = examine(make_url(guarded), login).values()
    assert (problem.check, problem.state) == (check, S.PROBLEM)
    assert text in problem.text
    assert problem.advice


def test_missing_bucket_is_a_problem(healthy):
    (problem,) = examine(healthy.url("beer").replace("/beer", "/wine")).values()
    assert (problem.check, problem.state) == ("bucket", S.PROBLEM)


def test_pending_cluster_map_is_named(healthy):
    with OldServer(healthy, STAGES["map pending"]) as server:
        (problem,) = examine(server.url()).values()
    assert (problem.check, problem.state) == ("cluster map", S.PROBLEM)
    assert "the server is starting" in problem.text
    assert "wait some seconds" in problem.advice


def test_missing_rights_are_problems_with_the_role_to_give(guarded):
    found = examine(guarded.url("beer"), Credentials("writer", SECRET))
    assert list_states(found, S.PROBLEM) == {
        "right to read documents",
        "right to read seqnos",
        "right to read statistics",
        "right to read streams",
    }
    assert "data_reader" in found["right to read documents"].advice
    assert "data_dcp_reader" in found["right to read streams"].advice
    assert found["right to write documents"].state is S.OK


def test_doctor_changes_nothing(healthy):
    before = [vbucket.changes.high_seqno for vbucket in healthy.buckets["beer"].store.vbuckets]
    examine(healthy.url("beer"))
    assert [vbucket.changes.high_seqno for vbucket in healthy.buckets["beer"].store.vbuckets] == before


def test_old_servers_lack_features_and_dialects(healthy):
    with OldServer(healthy, COUCHBASE_3_1) as server:
        found = examine(server.url())
    assert found["version"].text.startswith("Couchbase 3.1.6: 4 vbuckets")
    assert found.keys() >= {"lacks collections", "lacks durable writes", "lacks compression"}
    assert list_states(found, S.PROBLEM) == set()
    with OldServer(healthy, COUCHBASE_2_5) as server:
        found = examine(server.url())
    assert found["dialects"].state is S.WARNING
    assert "--protocol tap" in found["dialects"].advice


@pytest.mark.parametrize(
    ("release", "lacking"),
    [
        ("Couchbase 5.0.1", {"collections", "durable writes", "change history", "expirations"}),
        ("Couchbase 7.0.5", {"change history", "filters on the server"}),
        ("Couchbase 8.0.2", {"filters on the server"}),
    ],
)
def test_lacking_features_are_those_of_the_release(release, lacking):
    async def collect():
        async with ReleaseServer(RELEASES[release]) as server:
            address = parse_address(server.url(), Credentials(server.user, server.password))
            return {each.check for each in [found async for found in check_server(address)]}

    found = {check.removeprefix("lacks ") for check in asyncio.run(collect()) if check.startswith("lacks ")}
    assert found >= lacking
    assert not found & {"mutation tokens", "extended attributes"}


class SkewedMachine(Machine):
    """A machine whose clock is an hour behind."""

    def time(self):
        return super().time() - 3600


def test_skewed_clock_of_the_server_is_a_warning():
    with Node.running(["beer"], VBUCKETS, machine=SkewedMachine()) as node:
        clock = examine(node.url("beer"))["clock"]
    assert clock.state is S.WARNING
    assert "behind this machine's" in clock.text
    assert "NTP" in clock.advice


@pytest.mark.process  # it starts each Java that it finds
def test_command_reports_machine_and_server_and_its_exit_code(run, healthy, monkeypatch, tmp_path):
    found = run("doctor", "--json", "--url", healthy.url("beer"))
    assert {each["state"] for each in found.json["findings"] if each["topic"].startswith("Server ")} == {"ok"}
    checks = {each["check"] for each in found.json["findings"]}
    assert checks >= {"penstock", "python", "java", "extra spark", "port 11210", "space for temporary files"}
    assert found.code == (1 if found.json["problems"] else 0)
    monkeypatch.setenv("PENSTOCK_PASSWORD", SECRET)
    port = free_ports(1)[0]
    found = run("doctor", "--quiet", "--url", f"couchbase://127.0.0.1:{port}/beer", "--username", "u")
    assert (found.code, found.err) == (1, "")
    assert f"problem  127.0.0.1:{port}: Connection refused" in found.out
    assert " -> start the server" in found.out
    assert "\x1b" not in found.out
    assert SECRET not in found.out


def test_invalid_connection_string_is_wrong_usage(run):
    assert run("doctor", "--url", "http://x").code == 2
