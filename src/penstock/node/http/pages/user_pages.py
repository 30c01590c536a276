"""Users over HTTP: listed, added, changed and removed in the node's file of users, as Couchbase's SDKs ask.

Roles go by Couchbase's names where it has the role: `stream_reader` is `data_dcp_reader`, `replicator` is
`replication_target`. Source: ns_server menelaus_web_rbac.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.errors import Error, UsageError
from penstock.node.auth.roles import Privilege, Role, RoleName, User
from penstock.node.auth.users import Users, account_of, proper_name
from penstock.node.auth.users_file import UsersFile, change_users
from penstock.node.http.pages.forms import FormErrors, read_form
from penstock.node.http.pages.http_authentication import Page, Visit

__all__ = ["PAGES"]

_COUCHBASE_NAMES = {RoleName.STREAM_READER: "data_dcp_reader", RoleName.REPLICATOR: "replication_target"}
_OWN_NAMES = {couchbase: own.value for own, couchbase in _COUCHBASE_NAMES.items()}

_DESCRIPTIONS = {
    RoleName.DATA_READER: ("Data Reader", "Reads documents."),
    RoleName.DATA_WRITER: ("Data Writer", "Changes documents, without reading them."),
    RoleName.STREAM_READER: ("Data DCP Reader", "Reads documents and streams of changes."),
    RoleName.REPLICATOR: ("XDCR Inbound", "Reads, streams and changes documents with their meta data."),
    RoleName.ADMIN: ("Full Admin", "Does everything."),
}


async def _list(visit: Visit) -> Response:
    return visit.json([_user_document(account.user) for account in _users(visit).accounts()])


async def _list_none(visit: Visit) -> Response:
    """List what a node never has: external users, and groups of users."""
    return visit.json([])


async def _show(visit: Visit) -> Response:
    user = _users(visit).find(visit.argument("user"))
    if user is None:
        raise HTTPException(404, "Unknown user.")
    return visit.json(_user_document(user))


async def _put(visit: Visit) -> Response:
    """Add a user, or give one other roles, and another password if there is one in the form."""
    file, form = _file(visit), await read_form(visit.request)
    try:
        name = proper_name(visit.argument("user"))
        roles = [_own_text(text.strip()) for text in form.get("roles", "").split(",") if text.strip()]
        user = User.of(name, roles)
    except UsageError as error:
        raise FormErrors({"roles" if "role" in str(error) else "name": str(error)}) from None
    await _change(file, partial(_store_user, file.path, user, form.get("password")))
    return visit.json("")


async def _remove(visit: Visit) -> Response:
    file = _file(visit)
    await _change(file, partial(_remove_user, file.path, visit.argument("user")))
    return visit.json("")


async def _roles(visit: Visit) -> Response:
    said = []
    for name, (title, text) in _DESCRIPTIONS.items():
        target = {} if name is RoleName.ADMIN else {"bucket_name": "*"}
        said.append({"role": _COUCHBASE_NAMES.get(name, name.value), **target, "name": title, "desc": text})
    return visit.json(said)


def _users(visit: Visit) -> Users:
    """Return the users who can log in on the port that a request came to."""
    return visit.http.accesses[visit.request.scope["scheme"]].users


def _file(visit: Visit) -> UsersFile:
    """Return the node's file of users. Raises FormErrors if it has none."""
    users = visit.node.users
    if users is None:
        raise FormErrors({"_": "this node has no file of users: start it with --users FILE"})
    return users


async def _change(file: UsersFile, change: Callable[[], None]) -> None:
    """Change the file on a thread: it is synced to disk, and a password takes milliseconds. Raises HTTPException."""
    try:
        await asyncio.to_thread(change)
    except UsageError as error:
        raise FormErrors({"_": str(error)}) from None
    except KeyError:
        raise HTTPException(404, "Unknown user.") from None
    except Error as error:
        raise HTTPException(500, str(error)) from None
    file.reload()


def _store_user(path: Path, user: User, password: str | None) -> None:
    made = None if password is None else account_of(user, password)
    with change_users(path) as accounts:
        if made is None:
            if user.name not in accounts:
                raise UsageError(f"user {user.name!r} is new: expected a password")
            made = replace(accounts[user.name], user=user)
        accounts[user.name] = made


def _remove_user(path: Path, name: str) -> None:
    with change_users(path) as accounts:
        del accounts[name]


def _own_text(role: str) -> str:
    """Return the text of a role with the name that this node has for it."""
    name, bracket, target = role.partition("[")
    return _OWN_NAMES.get(name, name) + bracket + target


def _user_document(user: User) -> dict[str, Any]:
    return {
        "id": user.name,
        "domain": "local",
        "name": "",
        "roles": [_role_document(role) for role in user.roles],
        "groups": [],
        "external_groups": [],
    }


def _role_document(role: Role) -> dict[str, Any]:
    said: dict[str, Any] = {"role": _COUCHBASE_NAMES.get(role.name, role.name.value), "origins": [{"type": "user"}]}
    if role.name is not RoleName.ADMIN:
        said["bucket_name"] = role.target.bucket or "*"
        if role.name is not RoleName.REPLICATOR:
            said["scope_name"] = role.target.scope or "*"
            said["collection_name"] = role.target.collection or "*"
    return said


_LIST = "/settings/rbac/users"
_USER = f"{_LIST}/local/{{user}}"

PAGES = (
    Page("GET", _LIST, _list, Privilege.SETTINGS),
    Page("GET", f"{_LIST}/local", _list, Privilege.SETTINGS),
    Page("GET", f"{_LIST}/external", _list_none, Privilege.SETTINGS),
    Page("GET", _USER, _show, Privilege.SETTINGS),
    Page("PUT", _USER, _put, Privilege.SETTINGS),
    Page("DELETE", _USER, _remove, Privilege.SETTINGS),
    Page("GET", "/settings/rbac/roles", _roles, Privilege.SETTINGS),
    Page("GET", "/settings/rbac/groups", _list_none, Privilege.SETTINGS),
)
