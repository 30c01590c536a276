"""STAT of the node's connections: each as one JSON value, under the connection's number.

Source: kv_engine daemon/connection.cc, Connection::to_json. There, the number is the socket's descriptor.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import AccessDenied, InvalidArguments
from penstock.node.auth import Privilege
from penstock.node.session.connection_registry import RegisteredConnection
from penstock.node.stats.stat_group import Argument, StatGroup, StatRequest, Stats
from penstock.wire.codec.constants import Feature

_LONGEST_NUMBER = 20
_SELF = "self"


def _read_connections(request: StatRequest) -> Stats:
    """Return the connections of the node, or one of them. A user without SETTINGS sees only the own connection.

    Raises:
        InvalidArguments: the argument is no number, and not `self`.
        AccessDenied: the user may not see that connection.
    """
    numbered, text = tuple(request.node.connections.open_connections.items()), request.argument
    own = next(number for connection, number in numbered if connection.session is request.session)
    if text and text != _SELF and not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
        raise InvalidArguments(
            f"{request.name}: expected the number of a connection, or {_SELF}, found {text[:_LONGEST_NUMBER]!r}"
        )
    wanted = None if not text else own if text == _SELF else int(text)
    if wanted != own and not request.session.has_privilege(Privilege.SETTINGS):
        if wanted is not None:
            raise AccessDenied(f"connection {wanted}: not for {request.session.login.effective_user_name}")
        wanted = own
    return (
        (str(number), json.dumps(_build_connection(connection, number), separators=(",", ":")))
        for connection, number in numbered
        if wanted in (None, number)
    )


def _build_connection(connection: RegisteredConnection, number: int) -> dict[str, Any]:
    session = connection.session
    agent = session.agent
    return {
        "socket": number,
        "peername": session.peer,
        "protocol": "memcached",
        "bucket": None if session.bucket is None else session.bucket.store.name,
        **({"user": {"name": session.user}} if session.user is not None else {}),
        **({"agent_name": agent.name} if agent.name else {}),
        **({"connection_id": agent.connection_id} if agent.connection_id else {}),
        "type": session.stream_role or "normal",
        "features": [Feature(feature).name.lower() for feature in sorted(session.features)],
    }


GROUPS: dict[str, StatGroup] = {
    "connections": StatGroup(
        _read_connections,
        "the connections of the node with the names of their programs, or one of them, as JSON values",
        Argument.OPTIONAL,
        "NUMBER or self",
    )
}
