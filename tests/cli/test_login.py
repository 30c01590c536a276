"""Commands on a node that requires a login."""

import pytest

from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users

PASSWORD = "very secret"


@pytest.fixture
def guarded(tmp_path):
    with change_users(tmp_path / "users.json") as accounts:
        accounts["ada"] = make_account(User.from_texts("ada", ["admin"]), PASSWORD, 4096)
    with Node.running(["beer"], vbuckets=4, users=tmp_path / "users.json") as node:
        yield node


COMMANDS = [
    "stats",
    "streams list",
    "tail --from beginning --until now",
    "load - --key id",
    "workload --changes 1 --rate 0 --mix 0:0:1",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_log_in(run, guarded, monkeypatch, tmp_path, command):
    at = [*command.split(), "--url", guarded.url("beer")]
    document = b'{"id": "a"}\n'
    code, _, err = run(*at, stdin=document)
    assert (code, err) == (
        1,
        f"penstock: {guarded.url('beer')}: the bucket does not exist, or a client without login may not access it\n",
    )
    monkeypatch.setenv("PENSTOCK_PASSWORD", PASSWORD)
    assert run(*at, "--username", "ada", stdin=document).code == 0
    monkeypatch.setenv("PENSTOCK_USERNAME", "ada")
    assert run(*at, stdin=document).code == 0
    (tmp_path / "password").write_text("wrong secret\n")
    code, out, err = run(*at, "--password-file", tmp_path / "password", stdin=document)
    assert (code, out.strip("\n")) == (1, "")
    assert err.endswith(" refused the login of 'ada' by SCRAM-SHA512\n")
    assert "secret" not in err


def test_password_cannot_be_an_argument(run, guarded):
    assert run("stats", "--password", PASSWORD).code == 2
    code, _, err = run("stats", "--url", "couchbase://ada:very%20secret@127.0.0.1/beer")
    assert code == 2
    assert "secret" not in err
    assert run("stats", "--username", "ada").err == "penstock: a username without a password\n"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA512", "PLAIN"])
def test_user_without_a_password_logs_in(run, monkeypatch, tmp_path, mechanism):
    """A bucket of Couchbase 2.x is a user too, often with an empty password."""
    with change_users(tmp_path / "users.json") as accounts:
        accounts["beer"] = make_account(User.from_texts("beer", ["admin"]), None)
    (tmp_path / "password").write_text("\n")
    with Node.running(
        ["beer"], vbuckets=4, users=tmp_path / "users.json", mechanisms=[mechanism], allow_plain=True
    ) as node:
        url = ("--url", node.url("beer"))
        assert run("stats", *url, "--username", "beer", "--password-file", tmp_path / "password").code == 0
        monkeypatch.setenv("PENSTOCK_PASSWORD", "")
        assert run("stats", *url, "--username", "beer").code == 0
        monkeypatch.setenv("PENSTOCK_PASSWORD", "another")
        assert run("stats", *url, "--username", "beer").code == 1
