"""The users file: its contents, its damage, and the effect of its changes on a node."""

import hashlib
import json
import logging
import os
import stat
from threading import Thread

import pytest

from penstock.errors import Error, UsageError
from penstock.node.auth import User, UsersFile
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import CHECK_SECONDS, change_users, read_users
from penstock.node.auth.verifier import MIN_ITERATIONS
from tests.patience import PATIENCE


class Clock:
    """Clock that a test sets."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def add_user(path, name, password, *roles):
    with change_users(path) as accounts:
        accounts[name] = make_account(User.from_texts(name, roles or ["admin"]), password, MIN_ITERATIONS)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "users.json"
    add_user(path, "alice", "wonderland", "data_reader[beer:s]", "data_writer[*]")
    return path


def test_file_keeps_accounts(path):
    add_user(path, "Zoë", "hunter2")
    accounts, secret = read_users(path)
    assert sorted(accounts) == ["Zoë", "alice"]
    assert list(map(str, accounts["alice"].user.roles)) == ["data_reader[beer:s]", "data_writer[*]"]
    assert all(one.matches("wonderland") and not one.matches("x") for one in accounts["alice"].verifiers.values())
    assert len(secret) == 32
    text = path.read_text()
    assert "wonderland" not in text
    assert "hunter2" not in text
    assert "Zoë" in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["users.json"]


def test_changes_keep_the_secret(path):
    _, before = read_users(path)
    add_user(path, "bob", "x")
    with change_users(path) as accounts:
        del accounts["alice"]
    accounts, after = read_users(path)
    assert (list(accounts), after) == (["bob"], before)


def test_symbolic_link_to_the_file_stays(path, tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to(path.name)
    add_user(link, "bob", "x")
    assert link.is_symlink()
    assert sorted(read_users(path)[0]) == ["alice", "bob"]


def test_concurrent_changes_are_all_kept(path):
    threads = [Thread(target=add_user, args=(path, f"user{n}", "x")) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(read_users(path)[0]) == ["alice", *(f"user{n}" for n in range(6))]


def test_failed_change_keeps_the_file(path):
    before = path.read_bytes()

    def fail_to_change():
        with change_users(path) as accounts:
            accounts.clear()
            raise UsageError("failed")

    with pytest.raises(UsageError, match="failed"):
        fail_to_change()
    assert path.read_bytes() == before


def test_unwritable_file_is_reported(tmp_path):
    with pytest.raises(Error, match="cannot be written: File name too long"):
        add_user(tmp_path / ("x" * 250), "bob", "x")
    assert os.listdir(tmp_path) == []


def test_missing_directory_is_reported(tmp_path):
    with pytest.raises(UsageError, match="expected a directory: No such file"):
        add_user(tmp_path / "none" / "users.json", "bob", "x")


def test_file_that_other_users_can_read_causes_a_warning(path, caplog):
    path.chmod(0o640)
    with caplog.at_level(logging.WARNING, "penstock.node"):
        read_users(path)
    assert "others may read or change it (mode 640), expected 600" in caplog.text
    add_user(path, "bob", "x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def edit_file(path, change):
    file = json.loads(path.read_text())
    change(file)
    path.write_text(json.dumps(file))


def get_verifier(file):
    return file["users"]["alice"]["verifiers"]["SCRAM-SHA256"]


DAMAGE = [
    (lambda file: file.update(format=2), "format 2, this version knows 1"),
    (lambda file: file.pop("format"), "'format' is missing"),
    (lambda file: file.update(secret="AAAA"), "a secret of 3 bytes"),
    (lambda file: file.update(secret=7), "not a file of users, or damaged"),
    (lambda file: file.pop("users"), "'users' is missing"),
    (lambda file: file.update(users=[]), "not a file of users, or damaged"),
    (lambda file: file["users"].update({"\u2168": file["users"]["alice"]}), "in another form than SASLprep gives"),
    (lambda file: file["users"].update({"": file["users"]["alice"]}), "user name of 0 bytes, expected 1 to 128"),
    (lambda file: file["users"]["alice"].update(roles=["king"]), "role 'king': expected data_reader"),
    (lambda file: file["users"]["alice"].update(roles=7), "not a file of users, or damaged"),
    (lambda file: file["users"]["alice"]["verifiers"].pop("SCRAM-SHA1"), "'SCRAM-SHA1' is missing"),
    (lambda file: get_verifier(file).update(iterations=1), "1 iterations, expected 4096 to 1000000"),
    (lambda file: get_verifier(file).update(iterations=True), "True iterations"),
    (lambda file: get_verifier(file).update(stored_key="AAAA"), "keys of 3 and 32 bytes, expected 32"),
    (lambda file: get_verifier(file).update(salt="AAAA"), "salt of 3"),
    (lambda file: get_verifier(file).update(salt="!"), "not a file of users, or damaged"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGE)
def test_damaged_file_is_reported_in_one_sentence(path, change, message):
    edit_file(path, change)
    with pytest.raises(UsageError) as caught:
        read_users(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"[]", b"7", b"null", b"{", b"[" * 100_000, b'{"format": 1}'])
def test_files_of_another_kind_are_refused(path, text):
    path.write_bytes(text)
    with pytest.raises(UsageError, match=r"users\.json: not a file of users, or damaged"):
        read_users(path)


def test_file_that_is_not_utf8_is_refused_with_the_byte(path):
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"users\.json: byte 1, 0xff, is not UTF-8; expected a file of users"):
        read_users(path)


def test_missing_or_unreadable_file_is_reported(tmp_path):
    with pytest.raises(UsageError, match="no such file; `penstock user add NAME --users"):
        UsersFile(tmp_path / "none.json")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        UsersFile(tmp_path)


# Changes while a node runs


def test_changed_file_is_noticed_within_a_second(path, clock):
    users = UsersFile(path, clock)
    version = users.version
    add_user(path, "bob", "x", "data_reader[wine]")
    assert users.find("bob") is None  # the file was not checked again yet
    clock.now += CHECK_SECONDS
    bob = users.find("bob")
    assert bob is not None
    assert bob.can_see("wine")
    assert users.version > version
    version = users.version
    clock.now += CHECK_SECONDS
    assert users.find("bob") is bob  # the file was not read again
    assert users.version == version


def test_reload_reads_the_file_at_once(path, clock):
    users = UsersFile(path, clock)
    add_user(path, "bob", "x")
    assert users.reload()
    assert users.find("bob") is not None


def test_unreadable_file_keeps_the_users(path, clock, caplog):
    users = UsersFile(path, clock)
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    with caplog.at_level(logging.ERROR, "penstock.node"):
        for _ in range(5):
            clock.now += CHECK_SECONDS
            assert users.authenticate("alice", "wonderland") is users.find("alice")
    assert caplog.text.count("the users were not changed") == 1
    path.unlink()
    assert not users.reload()
    assert users.find("alice") is not None
    path.write_bytes(whole)
    clock.now += CHECK_SECONDS
    version = users.version
    assert users.find("alice") is not None
    assert users.version > version


# Plain passwords


@pytest.fixture
def derivations(monkeypatch):
    """Record the hash name of each PBKDF2 derivation."""
    found = []
    pbkdf2_hmac = hashlib.pbkdf2_hmac

    def count_derivation(name, *rest):
        found.append(name)
        return pbkdf2_hmac(name, *rest)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", count_derivation)
    return found


def test_right_password_is_not_derived_again(path, clock, derivations):
    users = UsersFile(path, clock)
    for _ in range(3):
        user = users.authenticate("alice", "wonderland")
        assert user is users.find("alice")
    assert len(derivations) == 1
    assert users.authenticate("alice", "Wonderland") is None
    assert users.authenticate("alice", "wonderland") is not None
    assert len(derivations) == 2
    for _ in range(2):
        assert users.authenticate("nobody", "wonderland") is None  # an unknown user takes a derivation each time
    assert len(derivations) == 4


def test_new_password_replaces_the_old_one(path, clock):
    users = UsersFile(path, clock)
    assert users.authenticate("alice", "wonderland") is not None
    add_user(path, "alice", "mirror")
    clock.now += CHECK_SECONDS
    assert users.authenticate("alice", "wonderland") is None
    assert users.authenticate("alice", "mirror") is not None
    with change_users(path) as accounts:
        del accounts["alice"]
    clock.now += CHECK_SECONDS
    assert users.authenticate("alice", "mirror") is None


def test_number_of_remembered_passwords_has_a_limit(path, clock, monkeypatch, derivations):
    monkeypatch.setattr("penstock.node.auth.users._MAX_REMEMBERED", 2)
    for name in ("bob", "carol"):
        add_user(path, name, "x")
    users = UsersFile(path, clock)
    for name, password in (("alice", "wonderland"), ("bob", "x"), ("alice", "wonderland"), ("carol", "x")):
        assert users.authenticate(name, password) is not None
    derivations.clear()
    assert users.authenticate("alice", "wonderland") is not None
    assert derivations == []
    assert users.authenticate("bob", "x") is not None
    assert len(derivations) == 1


@pytest.mark.parametrize(("password", "message"), [("", "0 bytes"), ("x" * 513, "513 bytes"), ("\x07", "RFC 4013")])
def test_invalid_passwords_are_refused(password, message):
    with pytest.raises(UsageError, match=message):
        make_account(User.from_texts("u", []), password)


@pytest.mark.parametrize(
    ("name", "password"),
    [("alice", "x" * 513), ("x" * 129, "x"), ("", ""), ("\ud800", "x"), ("alice", "\ud800"), ("\ufdfa" * 42, "x")],
)
def test_invalid_names_and_passwords_do_not_log_in(path, name, password):
    assert UsersFile(path).authenticate(name, password) is None
