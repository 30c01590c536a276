"""Privileges that roles grant for buckets, scopes and collections."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.node.auth import ANONYMOUS, Privilege, RoleName, RoleTarget, User, parse_role
from penstock.node.auth.roles import ALL_PRIVILEGES, ROLE_NAMES

P = Privilege

TEXTS = [
    ("data_reader[*]", RoleName.DATA_READER, RoleTarget()),
    ("data_writer[beer]", RoleName.DATA_WRITER, RoleTarget("beer")),
    ("data_dcp_reader[beer:s]", RoleName.DATA_DCP_READER, RoleTarget("beer", "s")),
    ("data_reader[beer:_default:_default]", RoleName.DATA_READER, RoleTarget("beer", "_default", "_default")),
    ("replication_target[a.b-c%d]", RoleName.REPLICATION_TARGET, RoleTarget("a.b-c%d")),
    ("external_stats_reader", RoleName.EXTERNAL_STATS_READER, RoleTarget()),
    ("admin", RoleName.ADMIN, RoleTarget()),
]


@pytest.mark.parametrize(("text", "name", "target"), TEXTS)
def test_role_texts_are_parsed(text, name, target):
    role = parse_role(text)
    assert (role.name, role.target, str(role)) == (name, target, text)


def test_admin_of_all_buckets_equals_admin():
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
    ("replication_target[beer:s]", "expected replication_target[beer]"),
    ("admin[beer]", "expected admin without a target"),
    ("external_stats_reader[beer]", "expected external_stats_reader without a target"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_invalid_role_texts_are_refused(text, message):
    with pytest.raises(UsageError) as caught:
        parse_role(text)
    assert repr(text) in str(caught.value)
    assert message in str(caught.value)


WHOLE = [
    ("data_reader", {P.READ}),
    ("data_writer", {P.WRITE}),
    ("data_dcp_reader", {P.READ, P.STREAM, P.SYSTEM_XATTR_READ, P.SIMPLE_STATS}),
    (
        "replication_target",
        {
            P.READ,
            P.WRITE,
            P.STREAM,
            P.META_WRITE,
            P.SYSTEM_XATTR_READ,
            P.SYSTEM_XATTR_WRITE,
            P.SIMPLE_STATS,
            P.REPLICATE,
        },
    ),
]


@pytest.mark.parametrize(("role", "privileges"), WHOLE)
def test_bucket_role_covers_its_bucket(role, privileges):
    user = User.from_texts("u", [f"{role}[beer]"])
    assert user.list_privileges("beer") == privileges
    assert user.list_privileges("wine") == frozenset()
    assert user.can_see("beer")
    assert not user.can_see("wine")
    assert not any(user.has_privilege(privilege) for privilege in P)
    everywhere = User.from_texts("u", [f"{role}[*]"])
    assert everywhere.list_privileges("wine") == privileges
    assert everywhere.can_see("wine")


def test_admin_has_all_privileges():
    assert ANONYMOUS.list_privileges("any") == User.from_texts("u", ["admin"]).list_privileges("any") == ALL_PRIVILEGES
    assert all(ANONYMOUS.has_privilege(privilege) for privilege in P)


def test_collection_role_covers_its_collection():
    user = User.from_texts("u", ["data_dcp_reader[beer:s:c]", "data_writer[beer:s]", "data_reader[wine]"])
    assert user.list_privileges("beer") == {P.SIMPLE_STATS}
    assert user.has_privilege(P.STREAM, "beer", "s", "c")
    assert not user.has_privilege(P.STREAM, "beer", "s")
    assert not user.has_privilege(P.STREAM, "beer", "s", "d")
    assert not user.has_privilege(P.STREAM, "beer", "t", "c")
    assert not user.has_privilege(P.STREAM, "wine", "s", "c")
    assert user.has_privilege(P.WRITE, "beer", "s", "d")
    assert user.has_privilege(P.WRITE, "beer", "s")
    assert not user.has_privilege(P.WRITE, "beer")
    assert user.has_privilege_within(P.STREAM, "beer")
    assert not user.has_privilege_within(P.STREAM, "wine")
    assert not user.has_privilege_within(P.REPLICATE, "beer")


names = st.sampled_from(["a", "b"])
targets = st.just("*") | names | st.builds("{}:{}".format, names, names) | st.builds("{}:{}:{}".format, *[names] * 3)
roles = st.builds("{}[{}]".format, st.sampled_from(["data_reader", "data_writer", "data_dcp_reader"]), targets)


@given(st.lists(roles, max_size=4))
def test_privilege_for_the_whole_covers_each_part(texts):
    user = User.from_texts("u", texts)
    assert User.from_texts("u", map(str, user.roles)) == user
    for privilege, bucket, scope, collection in product(P, "ab", "ab", "ab"):
        whole = (
            user.has_privilege(privilege),
            user.has_privilege(privilege, bucket),
            user.has_privilege(privilege, bucket, scope),
        )
        part = user.has_privilege(privilege, bucket, scope, collection)
        assert [*whole, part] == sorted((*whole, part))
        assert part <= user.has_privilege_within(privilege, bucket) <= user.can_see(bucket)
        assert (privilege in user.list_privileges(bucket)) == user.has_privilege(privilege, bucket)


def test_user_names_are_normalized():
    assert User.from_texts("alice", ["admin"]).name == "alice"
