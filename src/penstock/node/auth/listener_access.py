"""Who may use a listener, and how they log in: decided once, when the node starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.client.connect.sasl_login import PLAIN
from penstock.errors import UsageError
from penstock.node.auth.roles import ANONYMOUS, User
from penstock.node.auth.users import DEVELOPER, DEVELOPER_PASSWORD, Users, development_users
from penstock.wire.values.scram import SCRAM

__all__ = ["MECHANISMS", "Access", "decide_access"]

MECHANISMS = (*SCRAM, PLAIN)
"""All that there are, the preferred one first."""


_MOST_NAMES = 5


@dataclass(frozen=True, slots=True)
class Access:
    """users: who can log in. mechanisms: how. anonymous_user: who one is without, None: one has to.

    notice: what the operator should know about it, empty if nothing.
    """

    users: Users
    mechanisms: tuple[str, ...]
    anonymous_user: User | None
    notice: str = ""

    @property
    def mechanism_list(self) -> bytes:
        """The answer to SASL_LIST_MECHS."""
        return " ".join(self.mechanisms).encode()


def decide_access(
    users: Users | None,
    *,
    loopback: bool,
    tls: bool = False,
    mechanisms: Sequence[str] | None = None,
    allow_plain: bool = False,
    host: str = "",
) -> Access:
    """Return who may use a listener.

    users: None where the node was given none: then only this machine may reach the listener, everybody may do
    everything, and clients that have to log in have a user whom everybody knows. loopback: only this machine reaches
    it. tls: it speaks nothing but TLS. mechanisms: those to offer; None: all that may be. allow_plain: PLAIN may be
    used although others on the way can read the password. host: the listener's, for messages.
    Raises UsageError for a combination that would give the node or its passwords away, and for an unknown mechanism.
    """
    if users is None and not loopback:
        where = f"host {host}: " if host else ""
        raise UsageError(
            f"{where}without users a node listens on a loopback address only, such as 127.0.0.1 or ::1; "
            "`penstock user add NAME --users FILE` makes some"
        )
    unread = tls or allow_plain or users is None
    offered = _offered(mechanisms, unread)
    if users is None:
        notice = f"no users: everybody on this machine may do everything; to log in: {DEVELOPER}, {DEVELOPER_PASSWORD}"
        return Access(development_users(), offered, ANONYMOUS, notice)
    return Access(users, offered, None, _notice_of(users, loopback))


def _notice_of(users: Users, loopback: bool) -> str:
    if not len(users):
        return "there are no users yet: nobody can log in"
    names = [account.user.name for account in users.accounts() if not account.has_password]
    if loopback or not names:
        return ""
    shown = ", ".join(map(repr, names[:_MOST_NAMES])) + (", ..." if len(names) > _MOST_NAMES else "")
    return (
        f"warning: users without a password: {shown}: everybody who reaches a port of this node can log in as them; "
        "`penstock user add` gives them passwords"
    )


def _offered(mechanisms: Sequence[str] | None, unread: bool) -> tuple[str, ...]:
    if mechanisms is None:
        return MECHANISMS if unread else tuple(SCRAM)
    wanted = tuple(dict.fromkeys(name.upper() for name in mechanisms))
    unknown = [name for name in wanted if name not in MECHANISMS]
    if unknown or not wanted:
        raise UsageError(f"login mechanism {' '.join(unknown) or 'none'}: expected some of {' '.join(MECHANISMS)}")
    if PLAIN in wanted and not unread:
        raise UsageError("PLAIN without TLS sends passwords that others on the way can read; it has to be allowed")
    return wanted
