"""Who may use which listener."""

import pytest

from penstock.errors import UsageError
from penstock.node.auth import ANONYMOUS, MECHANISMS, Privilege, User, Users, decide_access
from penstock.node.auth.users import account_of

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


@pytest.mark.parametrize(
    ("more", "where"),
    [({}, ""), ({"tls": True}, ""), ({"allow_plain": True}, ""), ({"host": "10.0.0.1"}, "host 10.0.0.1: ")],
)
def test_beyond_this_machine_without_users(more, where):
    with pytest.raises(UsageError) as caught:
        decide_access(None, loopback=False, **more)
    assert str(caught.value) == (
        f"{where}without users a node listens on a loopback address only, such as 127.0.0.1 or ::1; "
        "`penstock user add NAME --users FILE` makes some"
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
def test_with_users_everybody_has_to_log_in(given, offered, loopback):
    access = decide_access(NOBODY, loopback=loopback, **given)
    assert (access.anonymous_user, access.mechanisms, access.users) == (None, offered, NOBODY)
    assert access.notice == "there are no users yet: nobody can log in"


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
def test_users_without_a_password_are_warned_of_beyond_this_machine(names, loopback, warned):
    accounts = {name: account_of(User.of(name, ["data_reader[*]"]), None, 4096) for name in names}
    accounts["root"] = account_of(User.of("root", ["admin"]), "root's", 4096)
    notice = decide_access(Users(accounts, b"s" * 32), loopback=loopback).notice
    if warned:
        assert notice == (
            f"warning: users without a password: {warned}: everybody who reaches a port of this node can log in as "
            "them; `penstock user add` gives them passwords"
        )
    else:
        assert not notice


def test_one_mechanism_alone():
    assert decide_access(None, loopback=True, mechanisms=["PLAIN"]).mechanism_list == b"PLAIN"


PLAINLY = "PLAIN without TLS sends passwords that others on the way can read; it has to be allowed"
SOME = "expected some of SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"
WRONG = [
    (["PLAIN"], PLAINLY),
    (["SCRAM-SHA1", "plain"], PLAINLY),
    (["SCRAM-SHA-1"], f"login mechanism SCRAM-SHA-1: {SOME}"),
    (["NTLM", "SCRAM-SHA1", "gssapi"], f"login mechanism NTLM GSSAPI: {SOME}"),
    ([], f"login mechanism none: {SOME}"),
]


@pytest.mark.parametrize(("mechanisms", "said"), WRONG)
def test_mechanisms_that_cannot_be(mechanisms, said):
    with pytest.raises(UsageError) as caught:
        decide_access(NOBODY, loopback=True, mechanisms=mechanisms)
    assert str(caught.value) == said
