"""Users and login mechanisms that a listener accepts."""

import pytest

from penstock.errors import UsageError
from penstock.node.auth import ANONYMOUS, MECHANISMS, Privilege, User, Users, decide_access
from penstock.node.auth.users import make_account

NO_USERS = Users({}, b"s" * 32)
SCRAMS = MECHANISMS[:3]


def test_loopback_listener_without_users_is_open():
    access = decide_access(None, loopback=True)
    assert access.anonymous_user is ANONYMOUS
    assert access.mechanism_list == b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"
    user = access.users.authenticate("Administrator", "password")
    assert user is not None
    assert user.has_privilege(Privilege.MANAGE_BUCKETS)
    assert "Administrator" in access.notice
    assert access.users.authenticate("Administrator", "Password") is None


@pytest.mark.parametrize(
    ("options", "prefix"),
    [({}, ""), ({"tls": True}, ""), ({"allow_plain": True}, ""), ({"host": "10.0.0.1"}, "host 10.0.0.1: ")],
)
def test_public_listener_without_users_is_refused(options, prefix):
    with pytest.raises(UsageError) as caught:
        decide_access(None, loopback=False, **options)
    assert str(caught.value) == (
        f"{prefix}without users a node listens on a loopback address only, such as 127.0.0.1 or ::1; "
        "`penstock user add NAME --users FILE` creates users"
    )


WITH_USERS = [
    ({}, SCRAMS),
    ({"tls": True}, MECHANISMS),
    ({"allow_plain": True}, MECHANISMS),
    ({"mechanisms": ["scram-sha1", "SCRAM-SHA256", "SCRAM-SHA1"]}, ("SCRAM-SHA1", "SCRAM-SHA256")),
    ({"mechanisms": ["PLAIN"], "tls": True}, ("PLAIN",)),
    ({"mechanisms": ["PLAIN"], "allow_plain": True}, ("PLAIN",)),
]


@pytest.mark.parametrize("loopback", [True, False])
@pytest.mark.parametrize(("given", "offered"), WITH_USERS)
def test_listener_with_users_requires_a_login(given, offered, loopback):
    access = decide_access(NO_USERS, loopback=loopback, **given)
    assert (access.anonymous_user, access.mechanisms, access.users) == (None, offered, NO_USERS)
    assert access.notice == "there are no users yet: no client can log in"


@pytest.mark.parametrize(
    ("names", "loopback", "warned"),
    [
        ((), False, ""),
        (("beer",), True, ""),
        (("beer",), False, "'beer'"),
        (("a", "b", "c", "d", "e"), False, "'a', 'b', 'c', 'd', 'e'"),
        (("a", "b", "c", "d", "e", "f"), False, "'a', 'b', 'c', 'd', 'e', ..."),
    ],
)
def test_public_listener_warns_of_users_without_a_password(names, loopback, warned):
    accounts = {name: make_account(User.from_texts(name, ["data_reader[*]"]), None, 4096) for name in names}
    accounts["root"] = make_account(User.from_texts("root", ["admin"]), "root's", 4096)
    notice = decide_access(Users(accounts, b"s" * 32), loopback=loopback).notice
    if warned:
        assert notice == (
            f"warning: users without a password: {warned}: every client that reaches a port of this node can log in as "
            "them; `penstock user add` sets passwords"
        )
    else:
        assert not notice


def test_single_mechanism_can_be_offered():
    assert decide_access(None, loopback=True, mechanisms=["PLAIN"]).mechanism_list == b"PLAIN"


PLAIN_REFUSED = "PLAIN without TLS sends passwords that others on the network can read; it must be allowed"
EXPECTED_MECHANISMS = "expected some of SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"
WRONG = [
    (["PLAIN"], PLAIN_REFUSED),
    (["SCRAM-SHA1", "plain"], PLAIN_REFUSED),
    (["SCRAM-SHA-1"], f"login mechanism SCRAM-SHA-1: {EXPECTED_MECHANISMS}"),
    (["NTLM", "SCRAM-SHA1", "gssapi"], f"login mechanism NTLM GSSAPI: {EXPECTED_MECHANISMS}"),
    ([], f"login mechanism none: {EXPECTED_MECHANISMS}"),
]


@pytest.mark.parametrize(("mechanisms", "message"), WRONG)
def test_invalid_mechanisms_are_refused(mechanisms, message):
    with pytest.raises(UsageError) as caught:
        decide_access(NO_USERS, loopback=True, mechanisms=mechanisms)
    assert str(caught.value) == message
