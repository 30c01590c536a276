"""Who may use which listener."""

import pytest

from penstock.errors import UsageError
from penstock.node.login import ANONYMOUS, MECHANISMS, Privilege, User, Users, decide_access
from penstock.node.login.users import account_of

NOBODY = Users({}, b"s" * 32)
SCRAMS = MECHANISMS[:3]


def test_on_this_machine_without_users():
    access = decide_access(None, loopback=True)
    assert access.anonymous_user is ANONYMOUS
    assert access.mechanism_list == b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"
    user = access.users.check("Administrator", "password")
    assert user is not None
    assert user.may(Privilege.MANAGE_BUCKETS)
    assert "Administrator" in access.notice
    assert access.users.check("Administrator", "Password") is None


@pytest.mark.parametrize("more", [{}, {"tls": True}, {"allow_plain": True}])
def test_beyond_this_machine_without_users(more):
    with pytest.raises(UsageError, match="without users a node listens on a loopback address only"):
        decide_access(None, loopback=False, **more)


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
def test_with_users_everybody_has_to_log_in(given, offered, loopback):
    access = decide_access(NOBODY, loopback=loopback, **given)
    assert (access.anonymous_user, access.mechanisms, access.users) == (None, offered, NOBODY)
    assert "nobody can log in" in access.notice


@pytest.mark.parametrize(
    ("names", "loopback", "warned"),
    [
        ((), False, ""),
        (("beer",), True, ""),
        (("beer",), False, "'beer'"),
        (("a", "b", "c", "d", "e", "f"), False, "'a', 'b', 'c', 'd', 'e', ..."),
    ],
)
def test_users_without_a_password_are_warned_of_beyond_this_machine(names, loopback, warned):
    accounts = {name: account_of(User.of(name, ["data_reader[*]"]), None, 4096) for name in names}
    accounts["root"] = account_of(User.of("root", ["admin"]), "root's", 4096)
    notice = decide_access(Users(accounts, b"s" * 32), loopback=loopback).notice
    if warned:
        assert notice.startswith(f"warning: users without a password: {warned}: everybody who reaches a port")
    else:
        assert not notice


def test_one_mechanism_alone():
    assert decide_access(None, loopback=True, mechanisms=["PLAIN"]).mechanism_list == b"PLAIN"


WRONG = [
    (["PLAIN"], "PLAIN without TLS sends passwords"),
    (["SCRAM-SHA1", "plain"], "PLAIN without TLS sends passwords"),
    (["SCRAM-SHA-1"], "login mechanism SCRAM-SHA-1: expected some of SCRAM-SHA512"),
    ([], "login mechanism none: expected some of SCRAM-SHA512"),
]


@pytest.mark.parametrize(("mechanisms", "said"), WRONG)
def test_mechanisms_that_cannot_be(mechanisms, said):
    with pytest.raises(UsageError, match=said):
        decide_access(NOBODY, loopback=True, mechanisms=mechanisms)
