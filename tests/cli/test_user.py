"""`penstock user`: users are added, listed and removed, and no output shows a password."""

import os
import pty
import subprocess
import sys

import pytest

from penstock.node.auth import UsersFile
from tests.patience import PATIENCE
from tests.waiting import wait_readable


@pytest.fixture
def path(tmp_path):
    return tmp_path / "users.json"


@pytest.fixture
def on_users(run, path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_USERS", str(path))
    return run


@pytest.fixture
def alice(on_users):
    assert on_users("user", "add", "alice", "--role", "data_reader[beer:s:c]", stdin=b"wonderland\n").code == 0


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
def test_user_is_added_with_a_password_from_a_pipe(on_users, path, ending):
    roles = ("--role", "data_reader[beer]", "--role", "data_writer[beer:s]")
    done = on_users("user", "add", "alice", *roles, stdin=b"wonder land" + ending)
    assert done == (0, "alice: data_reader[beer] data_writer[beer:s]\n", "")
    users = UsersFile(path)
    user = users.authenticate("alice", "wonder land")
    assert user is not None
    assert list(map(str, user.roles)) == ["data_reader[beer]", "data_writer[beer:s]"]
    assert users.authenticate("alice", "wonderland") is None


def test_user_is_added_without_a_password(on_users, path):
    done = on_users("user", "add", "beer", "--role", "data_dcp_reader[beer]", "--no-password")
    assert done == (0, "beer: data_dcp_reader[beer]\n", "")
    users = UsersFile(path)
    assert users.authenticate("beer", "") is not None
    assert users.authenticate("beer", "beer") is None


def test_password_cannot_be_combined_with_no_password(on_users, path):
    options = ("--role", "admin", "--no-password", "--password-file", "-")
    done = on_users("user", "add", "beer", *options, stdin=b"secret")
    assert (done.code, done.err) == (2, "penstock: --no-password cannot be combined with --password-file\n")
    assert not path.exists()


@pytest.mark.parametrize("source", ["a file", "-"])
def test_user_is_added_with_a_password_from_a_file(run, path, tmp_path, source):
    secret = tmp_path / "secret"
    secret.write_bytes("naïve\n".encode())
    where = secret if source == "a file" else "-"
    options = ("--role", "admin", "--users", path, "--password-file", where, "--json")
    done = run("user", "add", "root", *options, stdin="naïve".encode())
    assert (done.code, done.err, done.json) == (0, "", {"user": "root", "roles": ["admin"]})
    assert UsersFile(path).authenticate("root", "naïve") is not None


def add_at_terminal(path, *lines):
    """Add a user at a terminal, and type one of the lines at each prompt; return the exit code and the output."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "penstock", "user", "add", "alice", "--role", "admin", "--users", str(path)]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True) as process:
        os.close(slave)
        seen = b""
        for line in lines:
            before = seen.count(b": ")
            while seen.count(b": ") == before:
                assert wait_readable([master], 30), seen
                seen += os.read(master, 4096)
            os.write(master, line + b"\n")
        try:
            while wait_readable([master], 30):
                seen += os.read(master, 4096)
        except OSError:
            pass  # the other end is closed
        code = process.wait(PATIENCE)
    os.close(master)
    return code, seen.decode()


@pytest.mark.process
def test_user_is_added_with_a_password_from_a_prompt(path):
    code, seen = add_at_terminal(path, b"wonderland", b"wonderland")
    assert (code, "alice: admin" in seen) == (0, True)
    assert "wonderland" not in seen
    assert UsersFile(path).authenticate("alice", "wonderland") is not None


@pytest.mark.usefixtures("alice")
def test_password_and_roles_are_replaced_only_on_request(on_users, path):
    before = path.read_bytes()
    done = on_users("user", "add", "alice", "--role", "admin", stdin=b"mirror")
    assert (done.code, done.out) == (2, "")
    assert "--replace replaces the password" in done.err
    assert path.read_bytes() == before
    assert on_users("user", "add", "alice", "--role", "admin", "--replace", stdin=b"mirror").code == 0
    assert UsersFile(path).authenticate("alice", "wonderland") is None
    assert on_users("user", "list").lines == ["alice  admin"]


@pytest.mark.usefixtures("alice")
def test_users_are_listed(on_users):
    on_users("user", "add", "Zoë", "--role", "admin", stdin=b"x")
    assert on_users("user", "list").lines == ["Zoë    admin", "alice  data_reader[beer:s:c]"]
    assert on_users("user", "list", "--json").json_lines == [
        {"user": "Zoë", "roles": ["admin"]},
        {"user": "alice", "roles": ["data_reader[beer:s:c]"]},
    ]


@pytest.mark.usefixtures("alice")
def test_users_are_removed(on_users):
    on_users("user", "add", "bob", "--role", "admin", stdin=b"x")
    assert on_users("user", "remove", "bob").out == "Removed bob.\n"
    assert on_users("user", "remove", "alice", "--json").json == {"removed": "alice"}
    done = on_users("user", "list")
    assert done == (0, "", "")
    done = on_users("user", "remove", "alice")
    assert (done.code, done.out) == (2, "")
    assert "there is none" in done.err


ADD = ("user", "add", "bob", "--role")
WRONG = [
    (("user", "add", "bob"), b"x", "Missing option '--role'"),
    (
        (*ADD, "king"),
        b"x",
        "role 'king': expected data_reader, data_writer, data_dcp_reader, replication_target, external_stats_reader, "
        "admin",
    ),
    ((*ADD, "data_reader"), b"x", "or data_reader[*] for all buckets"),
    ((*ADD, "admin"), b"", "standard input: found 0 lines, expected one, with a password"),
    ((*ADD, "admin"), b"\n", "password of 0 bytes"),
    ((*ADD, "admin"), b"hunter2\nhunter3\n", "standard input: found 2 lines"),
    ((*ADD, "admin"), b"hunter2\xff", "standard input: byte 8 is not UTF-8; expected a password in UTF-8"),
    ((*ADD, "admin"), b"hunter2" * 1000, "standard input: more than 4096 bytes"),
    ((*ADD, "admin"), b"hunter2" * 100, "password of 700 bytes, expected 1 to 512"),
    ((*ADD, "admin"), b"hunter2\x07", "a name or password that SASLprep (RFC 4013) refuses: it has"),
    (
        (*ADD, "admin", "--password-file", "/none"),
        b"",
        "/none: No such file or directory, expected a file with a password",
    ),
    (("user", "add", "b\x07b", "--role", "admin"), b"hunter2", "RFC 4013"),
    (("user", "add", "b" * 129, "--role", "admin"), b"hunter2", "user name of 129 bytes, expected 1 to 128"),
    (("user", "list"), b"", "no such file; `penstock user add NAME"),
    (("user", "remove", "alice"), b"", "no such file"),
]


@pytest.mark.parametrize(("command", "stdin", "reason"), WRONG)
def test_wrong_usage_is_one_sentence_without_the_password(on_users, path, command, stdin, reason):
    done = on_users(*command, stdin=stdin)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err
    assert done.err.count("\n") == 1
    assert "hunter" not in done.err
    assert not path.exists()


def test_users_file_is_required(run, monkeypatch):
    monkeypatch.delenv("PENSTOCK_USERS", raising=False)
    done = run("user", "list")
    assert (done.code, done.out) == (2, "")
    assert "--users" in done.err


def test_file_without_users_is_refused(on_users, path):
    path.write_text("{}")
    for command in (("user", "list"), ("user", "remove", "x"), (*ADD, "admin")):
        done = on_users(*command, stdin=b"x")
        assert (done.code, done.out) == (2, "")
        assert "not a file of users" in done.err
    assert path.read_text() == "{}"


def test_group_without_a_command_lists_its_commands(run):
    assert "remove" in run("user").out


def test_the_example_shows_its_brackets(run):
    words = " ".join(run("user", "add", "--help").out.split())
    assert "--role 'data_reader[beer]' --role 'data_writer[beer:tasting]' --users users.json" in words
