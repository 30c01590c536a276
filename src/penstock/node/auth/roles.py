"""Roles of users, the part of the data that each role covers, and the privileges that it grants."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import NamedTuple, Self

from penstock.errors import UsageError
from penstock.names import is_bucket_name


class Privilege(Enum):
    """A permission that a command needs.

    Attributes:
        META_WRITE: documents with the metadata of another bucket.
        SYSTEM_XATTR_READ: extended attributes whose names begin with `_`. Without this privilege `$XTOC` does not list
            them. Source: kv_engine, subdocument_context.cc, validate_xattr_privilege.
        SYSTEM_XATTR_WRITE: changes of these attributes.
        SETTINGS: states of vbuckets, connections of others, checkpoints.
    """

    READ = auto()
    WRITE = auto()
    STREAM = auto()
    META_WRITE = auto()
    SYSTEM_XATTR_READ = auto()
    SYSTEM_XATTR_WRITE = auto()
    SIMPLE_STATS = auto()
    REPLICATE = auto()
    MANAGE_COLLECTIONS = auto()
    MANAGE_BUCKETS = auto()
    SETTINGS = auto()


ALL_PRIVILEGES = frozenset(Privilege)
DOCUMENT_PRIVILEGES = frozenset(
    (
        Privilege.READ,
        Privilege.WRITE,
        Privilege.STREAM,
        Privilege.META_WRITE,
        Privilege.SYSTEM_XATTR_READ,
        Privilege.SYSTEM_XATTR_WRITE,
    )
)
"""The privileges that a role can grant for single collections."""


class RoleName(StrEnum):
    """The roles, by their names in Couchbase. Source: ns_server, menelaus_roles.erl."""

    DATA_READER = "data_reader"
    DATA_WRITER = "data_writer"
    DATA_DCP_READER = "data_dcp_reader"
    REPLICATION_TARGET = "replication_target"
    EXTERNAL_STATS_READER = "external_stats_reader"
    ADMIN = "admin"


class RoleGrant(NamedTuple):
    """The privileges of a role.

    Attributes:
        documents: privileges within the role's target.
        bucket: privileges for the whole bucket that contains the target.
    """

    documents: frozenset[Privilege]
    bucket: frozenset[Privilege]


_MONITORING = frozenset((Privilege.SIMPLE_STATS,))

ROLE_GRANTS: dict[RoleName, RoleGrant] = {
    RoleName.DATA_READER: RoleGrant(frozenset((Privilege.READ,)), frozenset()),
    RoleName.DATA_WRITER: RoleGrant(frozenset((Privilege.WRITE,)), frozenset()),
    # Streams carry the system attributes, so data_dcp_reader may read them. Couchbase's data_reader and data_writer may
    # not either. Source: ns_server, menelaus_roles.erl.
    RoleName.DATA_DCP_READER: RoleGrant(
        frozenset((Privilege.READ, Privilege.STREAM, Privilege.SYSTEM_XATTR_READ)), _MONITORING
    ),
    RoleName.REPLICATION_TARGET: RoleGrant(
        DOCUMENT_PRIVILEGES,
        _MONITORING | {Privilege.REPLICATE},
    ),
    RoleName.EXTERNAL_STATS_READER: RoleGrant(frozenset(), frozenset((Privilege.SIMPLE_STATS,))),
    RoleName.ADMIN: RoleGrant(ALL_PRIVILEGES, ALL_PRIVILEGES),
}

ROLE_NAMES = ", ".join(RoleName)
_BUCKET_ROLES = frozenset((RoleName.REPLICATION_TARGET,))
"""Roles that cover whole buckets only."""

_NODE_ROLES = frozenset((RoleName.EXTERNAL_STATS_READER, RoleName.ADMIN))
"""Roles that cover all buckets only."""

_ROLE_TEXT = re.compile(r"(?P<name>[a-z_]+)(\[(?P<target>[^\[\]]*)\])?")
_SCOPE_OR_COLLECTION_NAME = re.compile(r"[A-Za-z0-9_%-]{1,251}")
"""The form of the names of scopes and collections."""


class RoleTarget(NamedTuple):
    """The part of the data that a role covers: all buckets, one bucket, one scope or one collection.

    Attributes:
        bucket: a bucket's name; None: all buckets.
        scope: a scope's name; None: all scopes.
        collection: a collection's name; None: all collections.
    """

    bucket: str | None = None
    scope: str | None = None
    collection: str | None = None

    def __str__(self) -> str:
        """Return the names joined by colons, or `*` for all buckets."""
        return ":".join(part for part in self if part is not None) or "*"

    def covers(self, bucket: str | None, scope: str | None, collection: str | None) -> bool:
        """Return whether a part of the data lies within the target. None stands for the whole bucket, scope or node."""
        wanted = (bucket, scope, collection)
        return all(own is None or own == other for own, other in zip(self, wanted, strict=True))


class Role(NamedTuple):
    """One role of a user. Its text is `data_reader[beer:scope:collection]`, `data_reader[*]` or `admin`.

    Attributes:
        name: the role's name.
        target: the part of the data that the role covers.
    """

    name: RoleName
    target: RoleTarget

    @property
    def covers_node(self) -> bool:
        """Whether the role has no target, because it always covers all buckets."""
        return self.name in _NODE_ROLES

    def __str__(self) -> str:
        """Return the text that `parse_role` reads."""
        return self.name.value if self.covers_node else f"{self.name.value}[{self.target}]"


def parse_role(text: str) -> Role:
    """Return the role of a text.

    Raises:
        UsageError: the text is no role; the message lists the roles.
    """
    parts = _ROLE_TEXT.fullmatch(text)
    if parts is None or parts["name"] not in RoleName._value2member_map_:
        raise UsageError(f"role {text!r}: expected {ROLE_NAMES}; all but the last two are followed by [BUCKET] or [*]")
    name, inside = RoleName(parts["name"]), parts["target"]
    if name in _NODE_ROLES:
        if inside not in (None, "*"):
            raise UsageError(f"role {text!r}: {name} covers all buckets, expected {name} without a target")
        return Role(name, RoleTarget())
    if not inside:
        raise UsageError(f"role {text!r}: expected a target, such as {name}[beer], or {name}[*] for all buckets")
    if inside == "*":
        return Role(name, RoleTarget())
    names = inside.split(":")
    if not (is_bucket_name(names[0]) and all(map(_SCOPE_OR_COLLECTION_NAME.fullmatch, names[1:])) and len(names) <= 3):
        raise UsageError(f"role {text!r}: expected [*], [BUCKET], [BUCKET:SCOPE] or [BUCKET:SCOPE:COLLECTION]")
    if name in _BUCKET_ROLES and len(names) > 1:
        raise UsageError(f"role {text!r}: {name} covers whole buckets, expected {name}[{names[0]}]")
    return Role(name, RoleTarget(*names))


@dataclass(frozen=True, slots=True)
class User:
    """A user and the user's roles.

    Attributes:
        name: the user's name; empty for a client that did not log in.
        roles: the roles, whose privileges are added up.
    """

    name: str
    roles: tuple[Role, ...]

    @classmethod
    def from_texts(cls, name: str, roles: Iterable[str]) -> Self:
        """Return a user with the roles of these texts.

        Raises:
            UsageError: a text is no role, as in `parse_role`.
        """
        return cls(name, tuple(map(parse_role, roles)))

    def has_privilege(
        self, privilege: Privilege, bucket: str | None = None, scope: str | None = None, collection: str | None = None
    ) -> bool:
        """Return whether the user has a privilege for a part of the data, given by names.

        Without a collection, the user needs the privilege for all collections of the scope, present and future. The
        same holds
        without a scope or a bucket.
        """
        for role in self.roles:
            grant, target = ROLE_GRANTS[role.name], role.target
            if privilege in grant.documents and target.covers(bucket, scope, collection):
                return True
            if privilege in grant.bucket and target.bucket in (None, bucket):
                return True
        return False

    def has_privilege_within(self, privilege: Privilege, bucket: str) -> bool:
        """Return whether the user has a privilege for a bucket or for any part of it."""
        return any(
            role.target.bucket in (None, bucket)
            and privilege in ROLE_GRANTS[role.name].documents | ROLE_GRANTS[role.name].bucket
            for role in self.roles
        )

    def list_privileges(self, bucket: str) -> frozenset[Privilege]:
        """Return the privileges that the user has for a whole bucket."""
        return frozenset(privilege for privilege in Privilege if self.has_privilege(privilege, bucket))

    def can_see(self, bucket: str) -> bool:
        """Return whether the user has any role for a bucket or a part of it.

        Other users must not learn that the bucket exists.
        """
        return any(role.target.bucket in (None, bucket) for role in self.roles)


ANONYMOUS = User("", (Role(RoleName.ADMIN, RoleTarget()),))
"""The user of connections without a login, on a node without users."""
