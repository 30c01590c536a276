"""Pages of users: they list and change the node's file of users, for Couchbase's SDKs.

Source of the forms and responses: ns_server menelaus_web_rbac.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.errors import UsageError
from penstock.node.auth.roles import Privilege, Role, RoleName, RoleTarget, User
from penstock.node.auth.users import Account, Users, make_account, normalize_name
from penstock.node.auth.users_file import UsersFile, change_users
from penstock.node.http.pages.forms import FormErrors, read_form
from penstock.node.http.pages.http_authentication import Page, PageRequest

_DESCRIPTIONS = {
    RoleName.DATA_READER: ("Data Reader", "Reads documents."),
    RoleName.DATA_WRITER: ("Data Writer", "Changes documents, without reading them."),
    RoleName.DATA_DCP_READER: ("Data DCP Reader", "Reads documents and streams of changes."),
    RoleName.REPLICATION_TARGET: ("XDCR Inbound", "Reads, streams and changes documents with their meta data."),
    RoleName.EXTERNAL_STATS_READER: ("External Stats Reader", "Reads statistics and metrics."),
    RoleName.ADMIN: ("Full Admin", "Does everything."),
}


async def _list_users(request: PageRequest) -> Response:
    return request.make_json_response(
        [_make_user_document(account.user) for account in _get_users(request).list_accounts()]
    )


async def _list_none(request: PageRequest) -> Response:
    """Return an empty list: a node has neither external users nor groups."""
    return request.make_json_response([])


def _find_name(request: PageRequest) -> str:
    """Return the name of a user in the path as the node stores it.

    Raises:
        HTTPException: no user can have the name.
    """
    try:
        return normalize_name(request.get_path_part("user"))
    except UsageError:
        raise HTTPException(404, "Unknown user.") from None


async def _show_user(request: PageRequest) -> Response:
    user = _get_users(request).find(_find_name(request))
    if user is None:
        raise HTTPException(404, "Unknown user.")
    return request.make_json_response(_make_user_document(user))


async def _put_user(request: PageRequest) -> Response:
    """Add a user, or change the roles of a user, and the password if the form has one.

    Returns:
        An empty text.
    """
    file, form = _get_file(request), await read_form(request.http_request)
    try:
        name = normalize_name(request.get_path_part("user"))
    except UsageError as error:
        raise FormErrors({"name": str(error)}) from None
    roles = [text.strip() for text in form.get("roles", "").split(",") if text.strip()]
    try:
        user = User.from_texts(name, roles)
    except UsageError as error:
        raise FormErrors({"roles": str(error)}) from None
    password = form.get("password")
    # On a thread: it takes milliseconds.
    made = None if password is None else await asyncio.to_thread(make_account, user, password)
    await _change_users(file, partial(_store_user, user, made))
    return request.make_json_response("")


async def _delete_user(request: PageRequest) -> Response:
    file = _get_file(request)
    await _change_users(file, partial(_remove_user, _find_name(request)))
    return request.make_json_response("")


async def _list_roles(request: PageRequest) -> Response:
    roles = []
    for name, (title, text) in _DESCRIPTIONS.items():
        target = {} if Role(name, RoleTarget()).covers_node else {"bucket_name": "*"}
        roles.append({"role": name.value, **target, "name": title, "desc": text})
    return request.make_json_response(roles)


def _get_users(request: PageRequest) -> Users:
    """Return the users that can log in on the port of a request."""
    return request.state.accesses[request.http_request.scope["scheme"]].users


def _get_file(request: PageRequest) -> UsersFile:
    """Return the node's file of users. Raises FormErrors if it has none."""
    users = request.node.users
    if users is None:
        raise FormErrors({"_": "this node has no file of users: start it with --users FILE"})
    return users


async def _change_users(file: UsersFile, change: Callable[[dict[str, Account]], None]) -> None:
    """Change the accounts in place, on a thread because of the disk."""
    try:
        await asyncio.to_thread(_change_file, file, change)
    except KeyError:
        raise HTTPException(404, "Unknown user.") from None
    file.reload()


def _change_file(file: UsersFile, change: Callable[[dict[str, Account]], None]) -> None:
    with change_users(file.path) as accounts:
        change(accounts)


def _store_user(user: User, made: Account | None, accounts: dict[str, Account]) -> None:
    if made is None:
        if user.name not in accounts:
            raise UsageError(f"user {user.name!r} does not exist: expected a password to create it")
        made = replace(accounts[user.name], user=user)
    accounts[user.name] = made


def _remove_user(name: str, accounts: dict[str, Account]) -> None:
    del accounts[name]


def _make_user_document(user: User) -> dict[str, Any]:
    return {
        "id": user.name,
        "domain": "local",
        "name": "",
        "roles": [_make_role_document(role) for role in user.roles],
        "groups": [],
        "external_groups": [],
    }


def _make_role_document(role: Role) -> dict[str, Any]:
    document: dict[str, Any] = {"role": role.name.value, "origins": [{"type": "user"}]}
    if not role.covers_node:
        document["bucket_name"] = role.target.bucket or "*"
        if role.name is not RoleName.REPLICATION_TARGET:
            document["scope_name"] = role.target.scope or "*"
            document["collection_name"] = role.target.collection or "*"
    return document


_LIST = "/settings/rbac/users"
_USER = f"{_LIST}/local/{{user}}"

PAGES = (
    Page("GET", _LIST, _list_users, Privilege.SETTINGS),
    Page("GET", f"{_LIST}/local", _list_users, Privilege.SETTINGS),
    Page("GET", f"{_LIST}/external", _list_none, Privilege.SETTINGS),
    Page("GET", _USER, _show_user, Privilege.SETTINGS),
    Page("PUT", _USER, _put_user, Privilege.SETTINGS),
    Page("DELETE", _USER, _delete_user, Privilege.SETTINGS),
    Page("GET", "/settings/rbac/roles", _list_roles, Privilege.SETTINGS),
    Page("GET", "/settings/rbac/groups", _list_none, Privilege.SETTINGS),
)
