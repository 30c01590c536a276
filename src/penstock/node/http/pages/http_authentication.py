"""Authenticates and authorizes HTTP requests.

A node without users accepts every client that reaches it. A browser on the same machine does, and it runs programs of
other sites. So the node refuses requests from pages of other sites. It also refuses requests to host names that are
not its own: another site may have pointed such a name to this machine (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.errors import TemporaryFailure
from penstock.node.auth.listener_access import ListenerAccess
from penstock.node.auth.roles import Privilege, User
from penstock.node.auth.server_tls import list_user_names
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.visible_manifest import filter_manifest
from penstock.node.cluster.own_map import dump_json, insert_host
from penstock.node.http.pages.http_documents import count_visible_items
from penstock.node.http.pages.http_state import HttpState, ManagedNode
from penstock.node.session.node_services import NodeServices
from penstock.store.definition.manifest import Manifest

MISSING = "Requested resource not found."
"""The text of a 404: the bucket does not exist, or the user must not know of it."""

_HOST = re.compile(r"(\[(?P<address>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,253}))(:[0-9]{1,5})?")
_UNAUTHENTICATED = User("", ())
"""The user of an open page without a login."""

_SAFE_METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """An authorized request.

    Attributes:
        http_request: the request.
        state: the state of the HTTP server.
        user: the user of the request.
        host: name or address by which the client knows the node, without port or brackets.
    """

    http_request: Request
    state: HttpState
    user: User
    host: str

    @property
    def node(self) -> ManagedNode:
        """The node."""
        return self.state.node

    @property
    def is_unauthenticated(self) -> bool:
        """Whether the client has not logged in, on a node that requires a login."""
        return self.user is _UNAUTHENTICATED

    def get_path_part(self, name: str) -> str:
        """Return a named part of the path."""
        return str(self.http_request.path_params[name])

    def find_bucket(self) -> ServedBucket:
        """Return the bucket in the path.

        Raises:
            HTTPException: the bucket does not exist, or the user must not know of it; both have the same response.
            InternalError: the node could not open the bucket.
        """
        name = self.get_path_part("bucket")
        served = self.node.buckets.find_open(name) if self.user.can_see(name) else None
        if served is None:
            raise HTTPException(404, MISSING)
        wanted = self.http_request.query_params.get("bucket_uuid")
        if wanted is not None and wanted not in (served.uuid, served.cluster_map.content.get("uuid")):
            raise HTTPException(404, "Bucket uuid does not match the requested.")
        return served

    def filter_manifest(self, served: ServedBucket) -> Manifest:
        """Return the manifest of a bucket as the user sees it."""
        return filter_manifest(served.store.manifests.current, self.user, served.store.name)

    def list_buckets(self) -> list[ServedBucket]:
        """Return the buckets that the user may know of."""
        return [served for name, served in self.node.buckets.items() if self.user.can_see(name)]

    def count_items(self) -> int:
        """Return the number of documents on this node in collections that the user may know of."""
        return sum(count_visible_items(served, self.filter_manifest(served)) for served in self.list_buckets())

    def is_user_current(self) -> bool:
        """Return whether the user still exists with the roles that it had when the request came."""
        access = self.state.accesses[self.http_request.scope["scheme"]]
        if self.user is access.anonymous_user:
            return True
        access.users.refresh()
        return access.users.find(self.user.name) == self.user

    def make_json_response(self, document: Any, status: int = 200) -> Response:
        """Return a response with a document, in which `$HOST` is replaced by the client's name for the node."""
        return make_json_response(insert_host(dump_json(document), self.host), status)


def make_json_response(text: bytes, status: int = 200) -> Response:
    """Return a response with JSON, which caches do not keep."""
    return Response(text, status, media_type="application/json", headers={"cache-control": "no-store"})


PageHandler = Callable[[PageRequest], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the node.

    Attributes:
        method: the HTTP method.
        path: the path, with names of parts in braces.
        handler: returns the response.
        privilege: the privilege that the user needs, for the bucket of the path if it has one; None: a login is enough.
        is_open: no login is needed.
    """

    method: str
    path: str
    handler: PageHandler
    privilege: Privilege | None = None
    is_open: bool = False


def make_route(http: HttpState, page: Page) -> Route:
    """Return the route of a page, which authenticates and authorizes its requests."""

    async def endpoint(request: Request) -> Response:
        host = _parse_host(request)
        user = await _authenticate(http, page, request, host)
        if page.privilege is not None and not user.has_privilege(page.privilege, request.path_params.get("bucket")):
            refusal = {
                "message": "Forbidden. User needs the following permissions",
                "permissions": [page.privilege.name],
            }
            return make_json_response(dump_json(refusal), 403)
        return await page.handler(PageRequest(request, http, user, host))

    return Route(page.path, endpoint, methods=[page.method])


def _parse_host(request: Request) -> str:
    """Return the host by which the client knows this node. Raises HTTPException for an invalid Host header."""
    host = request.headers.get("host")
    if host is None:
        return str(request.scope["server"][0])
    parts = _HOST.fullmatch(host)
    if parts is None:
        raise HTTPException(400, "invalid Host header")
    return parts["address"] or parts["name"]


async def _authenticate(http: HttpState, page: Page, request: Request, host: str) -> User:
    """Return the user of a request. Raises HTTPException if the login is missing, wrong, or from another site."""
    origin = request.headers.get("origin")
    if request.method not in _SAFE_METHODS and origin is not None:
        _, _, site = origin.partition("://")
        if site != request.headers.get("host"):
            raise HTTPException(403, "a request from the page of another site")
    access = http.accesses[request.scope["scheme"]]
    if access.anonymous_user is not None and not _is_own_host(host, http.node):
        # Also with a password: the password of such a node is well known.
        raise HTTPException(403, f"a node without users is not called {host}; ask for it by its address")
    authorization = request.headers.get("authorization")
    if authorization is None:
        if (user := _find_certified_user(access, request)) is not None:
            return user
        if access.anonymous_user is None:
            if page.is_open:
                return _UNAUTHENTICATED
            raise _make_unauthorized()
        return access.anonymous_user
    if request.scope["scheme"] == "http" and not (http.node.is_loopback or http.node.options.allow_plain):
        raise HTTPException(403, "passwords are accepted over TLS only; use the HTTPS port")
    return await _check_login(http, access, request, *_parse_credentials(authorization))


def _find_certified_user(access: ListenerAccess, request: Request) -> User | None:
    """Return the user of the client's certificate; None if there is none."""
    certificate = request.scope["state"]["certificate"] or {}
    found = (access.users.find(name) for name in list_user_names(certificate))
    return next((user for user in found if user is not None), None)


async def _check_login(http: HttpState, access: ListenerAccess, request: Request, name: str, password: str) -> User:
    """Return the user with this password, after the delay of guesses. Raises HTTPException for a wrong one."""
    address = request.client.host if request.client is not None else ""
    fits, proving = None, access.users.find_password_check(name, password)
    if proving is not None:
        try:
            fits = await http.node.passwords.check(address, name, proving)
        except TemporaryFailure as error:
            raise HTTPException(503, str(error)) from None
    user = access.users.authenticate(name, password, fits)
    await asyncio.sleep(http.node.attempts.record(address, name, is_right=user is not None))
    if user is None:
        raise _make_unauthorized()
    return user


def _is_own_host(host: str, node: NodeServices) -> bool:
    place = node.place
    known = [place.host, *([place.external.host] if place.external is not None else ())]
    if host.lower() in ("localhost", node.host, *(name.lower() for name in known)):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _parse_credentials(authorization: str) -> tuple[str, str]:
    scheme, _, text = authorization.partition(" ")
    try:
        if scheme.lower() != "basic":
            raise _make_unauthorized()
        name, colon, password = base64.b64decode(text.strip(), validate=True).decode("utf-8").partition(":")
    except ValueError:  # no base64, no UTF-8, or no ASCII
        raise _make_unauthorized() from None
    if not colon:
        raise _make_unauthorized()
    return name, password


def _make_unauthorized() -> HTTPException:
    return HTTPException(401, "Unauthorized", {"WWW-Authenticate": 'Basic realm="Penstock"'})
