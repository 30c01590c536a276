"""Access to a listener: its users and login mechanisms, decided once when the node starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.client.login.sasl_login import PLAIN
from penstock.errors import UsageError
from penstock.node.auth.roles import ANONYMOUS, User
from penstock.node.auth.users import DEVELOPER, DEVELOPER_PASSWORD, Users, get_development_users
from penstock.wire.values.scram import SCRAM

MECHANISMS = (*SCRAM, PLAIN)
"""All login mechanisms, the preferred one first."""


_MAX_SHOWN_NAMES = 5


@dataclass(frozen=True, slots=True)
class ListenerAccess:
    """Users and login mechanisms of one listener.

    Attributes:
        users: the users that can log in.
        mechanisms: the SASL mechanisms that are offered, the preferred one first.
        anonymous_user: the user of a connection that has not logged in; None if a login is required.
        notice: a sentence for the operator, such as a warning; empty if there is none.
    """

    users: Users
    mechanisms: tuple[str, ...]
    anonymous_user: User | None
    notice: str = ""

    @property
    def mechanism_list(self) -> bytes:
        """The value of a reply to SASL_LIST_MECHS."""
        return " ".join(self.mechanisms).encode()


def decide_access(
    users: Users | None,
    *,
    loopback: bool,
    tls: bool = False,
    mechanisms: Sequence[str] | None = None,
    allow_plain: bool = False,
    host: str = "",
) -> ListenerAccess:
    """Return the access to a listener.

    Args:
        users: None for a node without users. Then only the local machine can reach the listener, and every client has
            all privileges. Clients that always log in can use the well-known user of `get_development_users`.
        loopback: only the local machine reaches the listener.
        tls: the listener accepts only TLS.
        mechanisms: the mechanisms to offer; None: all that are permitted.
        allow_plain: PLAIN is permitted without TLS, although other machines on the network path can read the password.
        host: the listener's address, for messages.

    Raises:
        UsageError: the combination would expose the node or its passwords, or a mechanism is unknown.
    """
    if users is None and not loopback:
        prefix = f"host {host}: " if host else ""
        raise UsageError(
            f"{prefix}without users a node listens on a loopback address only, such as 127.0.0.1 or ::1; "
            "`penstock user add NAME --users FILE` creates users"
        )
    # Without users the only password is well known, so PLAIN reveals nothing.
    is_private = tls or allow_plain or users is None
    offered = _choose_mechanisms(mechanisms, is_private)
    if users is None:
        notice = (
            f"no users: every client on this machine has all privileges; to log in: {DEVELOPER}, {DEVELOPER_PASSWORD}"
        )
        return ListenerAccess(get_development_users(), offered, ANONYMOUS, notice)
    return ListenerAccess(users, offered, None, _make_notice(users, loopback))


def _make_notice(users: Users, loopback: bool) -> str:
    if not len(users):
        return "there are no users yet: no client can log in"
    names = [account.user.name for account in users.list_accounts() if not account.has_password]
    if loopback or not names:
        return ""
    shown = ", ".join(map(repr, names[:_MAX_SHOWN_NAMES])) + (", ..." if len(names) > _MAX_SHOWN_NAMES else "")
    return (
        f"warning: users without a password: {shown}: every client that reaches a port of this node can log in as "
        "them; `penstock user add` sets passwords"
    )


def _choose_mechanisms(mechanisms: Sequence[str] | None, is_private: bool) -> tuple[str, ...]:
    if mechanisms is None:
        return MECHANISMS if is_private else tuple(SCRAM)
    offered = tuple(dict.fromkeys(name.upper() for name in mechanisms))
    unknown = [name for name in offered if name not in MECHANISMS]
    if unknown or not offered:
        raise UsageError(f"login mechanism {' '.join(unknown) or 'none'}: expected some of {' '.join(MECHANISMS)}")
    if PLAIN in offered and not is_private:
        raise UsageError("PLAIN without TLS sends passwords that others on the network can read; it must be allowed")
    return offered
