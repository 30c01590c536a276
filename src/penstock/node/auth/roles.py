"""What a user may do: roles, each of them about a part of the data, and the privileges that they come to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import NamedTuple, Self

from penstock.errors import UsageError

__all__ = [
    "ANONYMOUS",
    "EVERYTHING",
    "OF_DOCUMENTS",
    "ROLE_NAMES",
    "Privilege",
    "Role",
    "RoleName",
    "RoleTarget",
    "User",
    "parse_role",
]


class Privilege(Enum):
    """What a command needs.

    META_READ: sequence numbers and failover logs. META_WRITE: documents with the metadata of another bucket.
    SYSTEM_XATTR_READ, SYSTEM_XATTR_WRITE: extended attributes whose names begin with `_`. Without the first, `$XTOC`
    does not list them. Source: kv_engine, subdocument_context.cc, validate_xattr_privilege.
    SETTINGS: states of vbuckets, connections of others, checkpoints.
    """

    READ = auto()
    WRITE = auto()
    STREAM = auto()
    META_WRITE = auto()
    SYSTEM_XATTR_READ = auto()
    SYSTEM_XATTR_WRITE = auto()
    META_READ = auto()
    SIMPLE_STATS = auto()
    REPLICATE = auto()
    MANAGE_COLLECTIONS = auto()
    MANAGE_BUCKETS = auto()
    SETTINGS = auto()


EVERYTHING = frozenset(Privilege)
OF_DOCUMENTS = frozenset(
    (
        Privilege.READ,
        Privilege.WRITE,
        Privilege.STREAM,
        Privilege.META_WRITE,
        Privilege.SYSTEM_XATTR_READ,
        Privilege.SYSTEM_XATTR_WRITE,
    )
)
"""What a user may have for some collections only."""


class RoleName(StrEnum):
    """The roles, by the names under which they are given."""

    DATA_READER = "data_reader"
    DATA_WRITER = "data_writer"
    STREAM_READER = "stream_reader"
    REPLICATOR = "replicator"
    ADMIN = "admin"


class Grant(NamedTuple):
    """What a role gives: `documents` within its target; `bucket` in the bucket that the target lies in."""

    documents: frozenset[Privilege]
    bucket: frozenset[Privilege]


_META_READ = frozenset((Privilege.META_READ,))
_WATCH = _META_READ | {Privilege.SIMPLE_STATS}

GRANTS: dict[RoleName, Grant] = {
    RoleName.DATA_READER: Grant(frozenset((Privilege.READ,)), _META_READ),
    RoleName.DATA_WRITER: Grant(frozenset((Privilege.WRITE,)), _META_READ),
    # Couchbase's data_reader and data_writer have no access to attributes of the system either. Streams carry them all.
    # Source: ns_server, menelaus_roles.erl.
    RoleName.STREAM_READER: Grant(frozenset((Privilege.READ, Privilege.STREAM, Privilege.SYSTEM_XATTR_READ)), _WATCH),
    RoleName.REPLICATOR: Grant(
        OF_DOCUMENTS,
        _WATCH | {Privilege.REPLICATE},
    ),
    RoleName.ADMIN: Grant(EVERYTHING, EVERYTHING),
}

ROLE_NAMES = ", ".join(RoleName)
_WHOLE_BUCKETS = frozenset((RoleName.REPLICATOR,))
"""Roles that cannot be about less than a bucket."""

_ROLE = re.compile(r"(?P<name>[a-z_]+)(\[(?P<target>[^\[\]]*)\])?")
_BUCKET = re.compile(r"[A-Za-z0-9_.%-]{1,100}")
_INNER = re.compile(r"[A-Za-z0-9_%-]{1,251}")
"""Names of scopes and collections."""


class RoleTarget(NamedTuple):
    """What a role is about: all buckets, one bucket, one scope or one collection. None: all that there are."""

    bucket: str | None = None
    scope: str | None = None
    collection: str | None = None

    def __str__(self) -> str:
        return ":".join(part for part in self if part is not None) or "*"

    def covers(self, bucket: str | None, scope: str | None, collection: str | None) -> bool:
        """Tell whether a part of the data lies within; None stands for the whole of what it would be a part of."""
        wanted = (bucket, scope, collection)
        return all(own is None or own == other for own, other in zip(self, wanted, strict=True))


class Role(NamedTuple):
    """One role of a user. Its text is `data_reader[beer:scope:collection]`, `data_reader[*]` or `admin`."""

    name: RoleName
    target: RoleTarget

    def __str__(self) -> str:
        return self.name.value if self.name is RoleName.ADMIN else f"{self.name.value}[{self.target}]"


def parse_role(text: str) -> Role:
    """Read the text of a role. Raises UsageError, which says which roles there are."""
    parts = _ROLE.fullmatch(text)
    if parts is None or parts["name"] not in RoleName._value2member_map_:
        raise UsageError(f"role {text!r}: expected {ROLE_NAMES}, all but admin with [BUCKET] or [*] behind")
    name, inside = RoleName(parts["name"]), parts["target"]
    if name is RoleName.ADMIN:
        if inside not in (None, "*"):
            raise UsageError(f"role {text!r}: admin is about all that there is, expected it alone")
        return Role(name, RoleTarget())
    if not inside:
        raise UsageError(
            f"role {text!r}: expected what it is about, such as {name}[beer], or {name}[*] for all buckets"
        )
    if inside == "*":
        return Role(name, RoleTarget())
    names = inside.split(":")
    if not (_BUCKET.fullmatch(names[0]) and all(map(_INNER.fullmatch, names[1:])) and len(names) <= 3):
        raise UsageError(f"role {text!r}: expected [*], [BUCKET], [BUCKET:SCOPE] or [BUCKET:SCOPE:COLLECTION]")
    if name in _WHOLE_BUCKETS and len(names) > 1:
        raise UsageError(f"role {text!r}: a {name} has whole buckets, expected {name}[{names[0]}]")
    return Role(name, RoleTarget(*names))


@dataclass(frozen=True, slots=True)
class User:
    """Who somebody is, and what they may do. name: empty for one who did not log in."""

    name: str
    roles: tuple[Role, ...]

    @classmethod
    def of(cls, name: str, roles: Iterable[str]) -> Self:
        """Make one from the texts of roles. Raises UsageError as parse_role does."""
        return cls(name, tuple(map(parse_role, roles)))

    def may(
        self, privilege: Privilege, bucket: str | None = None, scope: str | None = None, collection: str | None = None
    ) -> bool:
        """Tell whether the user has a privilege for a part of the data, by its names.

        Without a collection: for all that the scope has and will have; likewise without a scope, or a bucket.
        """
        for role in self.roles:
            grant, target = GRANTS[role.name], role.target
            if privilege in grant.documents and target.covers(bucket, scope, collection):
                return True
            if privilege in grant.bucket and target.bucket in (None, bucket):
                return True
        return False

    def may_somewhere(self, privilege: Privilege, bucket: str) -> bool:
        """Tell whether the user has a privilege for a bucket or for anything in it."""
        return any(
            role.target.bucket in (None, bucket) and privilege in GRANTS[role.name].documents | GRANTS[role.name].bucket
            for role in self.roles
        )

    def privileges(self, bucket: str) -> frozenset[Privilege]:
        """Return what the user may do in the whole of a bucket."""
        return frozenset(privilege for privilege in Privilege if self.may(privilege, bucket))

    def sees(self, bucket: str) -> bool:
        """Tell whether the user has anything to do with a bucket: only then may they learn that it exists."""
        return any(role.target.bucket in (None, bucket) for role in self.roles)


ANONYMOUS = User("", (Role(RoleName.ADMIN, RoleTarget()),))
"""Who does not log in where nobody has to."""
