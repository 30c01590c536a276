"""`penstock tls init`: certificates for development."""

import ssl
import stat

import pytest

from penstock.node.auth.server_tls import make_server_context

NAMES = ["ca.key", "ca.pem", "client.key", "client.pem", "server.key", "server.pem"]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_init_writes_six_files_that_a_node_accepts(run, tmp_path):
    directory = tmp_path / "some where"
    done = run("tls", "init", directory)
    assert (done.code, done.err) == (0, "")
    assert sorted(contents(directory)) == NAMES
    assert {mode(path) for path in directory.glob("*.key")} == {0o600}
    make_server_context(directory / "server.pem", directory / "server.key", directory / "ca.pem")
    assert f"--tls-port 11207 --tls-cert '{directory}/server.pem' --tls-key '{directory}/server.key'" in done.out
    assert "couchbases://localhost/default?ca=" in done.out
    assert "some%20where/ca.pem" in done.out
    assert "PRIVATE KEY" not in done.out
    assert "as Administrator, without a password" in done.out


def test_init_prints_json(run, tmp_path):
    done = run("tls", "init", tmp_path, "--host", "a.example", "--user", "alice", "--days", "2", "--json")
    found = done.json
    assert found.pop("user") == "alice"
    assert found.pop("expires").endswith("+00:00")
    assert found == {
        "ca": f"{tmp_path}/ca.pem",
        "server": f"{tmp_path}/server.pem",
        "server_key": f"{tmp_path}/server.key",
        "client": f"{tmp_path}/client.pem",
        "client_key": f"{tmp_path}/client.key",
    }
    context = ssl.create_default_context(cafile=found["ca"])
    context.load_cert_chain(found["client"], found["client_key"])


def test_existing_files_are_replaced_only_with_force(run, tmp_path):
    run("tls", "init", tmp_path)
    before = contents(tmp_path)
    done = run("tls", "init", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "exists; --force replaces all files" in done.err
    (tmp_path / "ca.pem").unlink()
    assert "ca.key exists" in run("tls", "init", tmp_path).err
    assert contents(tmp_path) == {name: content for name, content in before.items() if name != "ca.pem"}
    (tmp_path / "server.key").chmod(0o644)
    assert run("tls", "init", tmp_path, "--force").code == 0
    after = contents(tmp_path)
    assert sorted(after) == NAMES
    assert not any(after[name] == before[name] for name in NAMES)
    assert mode(tmp_path / "server.key") == 0o600


WRONG = [
    (("--days", "0"), "'0'"),
    (("--host", "a b"), "host 'a b': expected a name or an address"),
    (("--user", "u" * 65), "user name of 65 characters"),
]


@pytest.mark.parametrize(("options", "reason"), WRONG)
def test_wrong_usage_is_reported(run, tmp_path, options, reason):
    done = run("tls", "init", tmp_path / "new", *options)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err
    assert not (tmp_path / "new").exists()


def test_directory_that_cannot_be_made_is_a_failure(run, tmp_path):
    (tmp_path / "file").touch()
    done = run("tls", "init", tmp_path / "file" / "tls")
    assert (done.code, done.out) == (1, "")
    assert "cannot be written: Not a directory" in done.err


def test_group_without_a_command_lists_its_commands(run):
    assert "init" in run("tls").out
