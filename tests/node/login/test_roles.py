"""What roles come to, for whole buckets and for parts of them."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.node.auth import ANONYMOUS, Privilege, RoleName, RoleTarget, User, parse_role
from penstock.node.auth.roles import EVERYTHING, ROLE_NAMES

P = Privilege

TEXTS = [
    ("data_reader[*]", RoleName.DATA_READER, RoleTarget()),
    ("data_writer[beer]", RoleName.DATA_WRITER, RoleTarget("beer")),
    ("stream_reader[beer:s]", RoleName.STREAM_READER, RoleTarget("beer", "s")),
    ("data_reader[beer:_default:_default]", RoleName.DATA_READER, RoleTarget("beer", "_default", "_default")),
    ("replicator[a.b-c%d]", RoleName.REPLICATOR, RoleTarget("a.b-c%d")),
    ("admin", RoleName.ADMIN, RoleTarget()),
]


@pytest.mark.parametrize(("text", "name", "target"), TEXTS)
def test_texts(text, name, target):
    role = parse_role(text)
    assert (role.name, role.target, str(role)) == (name, target, text)


def test_admin_of_all_buckets_is_admin():
    assert str(parse_role("admin[*]")) == "admin"


WRONG = [
    ("", ROLE_NAMES),
    ("reader[beer]", ROLE_NAMES),
    ("DATA_READER[beer]", ROLE_NAMES),
    ("data_reader[beer", ROLE_NAMES),
    ("data_reader[beer]]", ROLE_NAMES),
    ("data_reader[beer] ", ROLE_NAMES),
    ("data_reader", "or data_reader[*] for all buckets"),
    ("data_reader[]", "or data_reader[*] for all buckets"),
    ("data_reader[be er]", "[BUCKET:SCOPE:COLLECTION]"),
    ("data_reader[beer:]", "[BUCKET:SCOPE:COLLECTION]"),
    ("data_reader[beer:s:c:d]", "[BUCKET:SCOPE:COLLECTION]"),
    ("data_reader[beer:*]", "[BUCKET:SCOPE:COLLECTION]"),
    ("replicator[beer:s]", "expected replicator[beer]"),
    ("admin[beer]", "expected it alone"),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_texts_that_are_no_role(text, said):
    with pytest.raises(UsageError) as caught:
        parse_role(text)
    assert repr(text) in str(caught.value)
    assert said in str(caught.value)


WHOLE = [
    ("data_reader", {P.READ, P.META_READ}),
    ("data_writer", {P.WRITE, P.META_READ}),
    ("stream_reader", {P.READ, P.STREAM, P.SYSTEM_XATTR_READ, P.META_READ, P.SIMPLE_STATS}),
    (
        "replicator",
        {
            P.READ,
            P.WRITE,
            P.STREAM,
            P.META_WRITE,
            P.SYSTEM_XATTR_READ,
            P.SYSTEM_XATTR_WRITE,
            P.META_READ,
            P.SIMPLE_STATS,
            P.REPLICATE,
        },
    ),
]


@pytest.mark.parametrize(("role", "has"), WHOLE)
def test_a_role_of_a_bucket(role, has):
    user = User.of("u", [f"{role}[beer]"])
    assert user.privileges("beer") == has
    assert user.privileges("wine") == frozenset()
    assert user.sees("beer")
    assert not user.sees("wine")
    assert not any(user.may(privilege) for privilege in P)
    everywhere = User.of("u", [f"{role}[*]"])
    assert everywhere.privileges("wine") == has
    assert everywhere.sees("wine")


def test_the_admin_may_all():
    assert ANONYMOUS.privileges("any") == User.of("u", ["admin"]).privileges("any") == EVERYTHING
    assert all(ANONYMOUS.may(privilege) for privilege in P)


def test_a_role_of_a_collection():
    user = User.of("u", ["stream_reader[beer:s:c]", "data_writer[beer:s]", "data_reader[wine]"])
    assert user.privileges("beer") == {P.META_READ, P.SIMPLE_STATS}
    assert user.may(P.STREAM, "beer", "s", "c")
    assert not user.may(P.STREAM, "beer", "s")
    assert not user.may(P.STREAM, "beer", "s", "d")
    assert not user.may(P.STREAM, "beer", "t", "c")
    assert not user.may(P.STREAM, "wine", "s", "c")
    assert user.may(P.WRITE, "beer", "s", "d")
    assert user.may(P.WRITE, "beer", "s")
    assert not user.may(P.WRITE, "beer")
    assert user.may_somewhere(P.STREAM, "beer")
    assert not user.may_somewhere(P.STREAM, "wine")
    assert not user.may_somewhere(P.REPLICATE, "beer")


names = st.sampled_from(["a", "b"])
targets = st.just("*") | names | st.builds("{}:{}".format, names, names) | st.builds("{}:{}:{}".format, *[names] * 3)
roles = st.builds("{}[{}]".format, st.sampled_from(["data_reader", "data_writer", "stream_reader"]), targets)


@given(st.lists(roles, max_size=4))
def test_who_may_in_all_may_in_each_part(texts):
    user = User.of("u", texts)
    assert User.of("u", map(str, user.roles)) == user
    for privilege, bucket, scope, collection in product(P, "ab", "ab", "ab"):
        whole = user.may(privilege), user.may(privilege, bucket), user.may(privilege, bucket, scope)
        part = user.may(privilege, bucket, scope, collection)
        assert [*whole, part] == sorted((*whole, part))
        assert part <= user.may_somewhere(privilege, bucket) <= user.sees(bucket)
        assert (privilege in user.privileges(bucket)) == user.may(privilege, bucket)


def test_a_user_has_a_name():
    assert User.of("alice", ["admin"]).name == "alice"
