"""A request on its way to what answers it: who sends it, whether they may, and where they think that the node is.

A node without users belongs to whoever reaches it. A browser on the same machine does, and runs programs of strangers;
so a request must not come from a page of another site, and not by a name that somebody else may have pointed here.
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
from penstock.node.auth.listener_access import Access
from penstock.node.auth.roles import Privilege, User
from penstock.node.auth.server_tls import names_in
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.visible_manifest import visible_manifest
from penstock.node.cluster.topology import at_host, dump
from penstock.node.http.pages.http_documents import visible_items
from penstock.node.http.pages.http_state import HttpState
from penstock.node.session.node_services import NodeServices
from penstock.store.definition.manifest import Manifest

__all__ = ["Page", "Visit", "json_response", "route_of"]

_HOST = re.compile(r"(\[(?P<address>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,253}))(:[0-9]{1,5})?")
_STRANGER = User("", ())
"""The user of an open page who has not logged in."""

_SAFE_METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Visit:
    """host: the name or address of the node that the peer knows, without port or brackets."""

    request: Request
    http: HttpState
    user: User
    host: str

    @property
    def node(self) -> NodeServices:
        return self.http.node

    @property
    def is_stranger(self) -> bool:
        """Return whether the client has not logged in, on a node that asks for a login."""
        return self.user is _STRANGER

    def argument(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    def bucket(self) -> ServedBucket:
        """Return the bucket in the path. Raises HTTPException, the same for one that the user must not know of."""
        name = self.argument("bucket")
        served = self.node.buckets.get(name)
        if served is None or not self.user.sees(name):
            raise HTTPException(404, "Requested resource not found.")
        wanted = self.request.query_params.get("bucket_uuid")
        if wanted is not None and wanted != served.uuid:
            raise HTTPException(404, "Bucket uuid does not match the requested.")
        return served

    def manifest(self, served: ServedBucket) -> Manifest:
        """Return the manifest of a bucket as the user sees it."""
        return visible_manifest(served.store.manifests.current, self.user, served.store.name)

    def buckets(self) -> list[ServedBucket]:
        """Return the buckets that the user may know of."""
        return [served for name, served in self.node.buckets.items() if self.user.sees(name)]

    def items(self) -> int:
        """Return how many documents of this node the user may know of."""
        return sum(visible_items(served, self.manifest(served)) for served in self.buckets())

    def is_current(self) -> bool:
        """Tell whether the user still is one, with the same roles as when the request came."""
        access = self.http.accesses[self.request.scope["scheme"]]
        if self.user is access.anonymous_user:
            return True
        access.users.refresh()
        return access.users.find(self.user.name) == self.user

    def json(self, said: Any, status: int = 200) -> Response:
        return json_response(at_host(dump(said), self.host), status)


def json_response(text: bytes, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json", headers={"cache-control": "no-store"})


Handler = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    """needs: what one must be allowed to do, with the bucket of the path where there is one; None: to log in is enough.
    open: not even that.
    """

    method: str
    path: str
    handler: Handler
    needs: Privilege | None = None
    open: bool = False


def route_of(http: HttpState, page: Page) -> Route:
    async def endpoint(request: Request) -> Response:
        host = _host(request)
        user = await _user(http, page, request, host)
        if page.needs is not None and not user.may(page.needs, request.path_params.get("bucket")):
            said = {"message": "Forbidden. User needs the following permissions", "permissions": [page.needs.name]}
            return json_response(dump(said), 403)
        return await page.handler(Visit(request, http, user, host))

    return Route(page.path, endpoint, methods=[page.method])


def _host(request: Request) -> str:
    """Return what the peer calls this node. Raises HTTPException for what is no host."""
    said = request.headers.get("host")
    if said is None:
        return str(request.scope["server"][0])
    parts = _HOST.fullmatch(said)
    if parts is None:
        raise HTTPException(400, "a Host that is none")
    return parts["address"] or parts["name"]


async def _user(http: HttpState, page: Page, request: Request, host: str) -> User:
    """Return who sends a request. Raises HTTPException where that is not said, not true, or not to be believed."""
    origin = request.headers.get("origin")
    if request.method not in _SAFE_METHODS and origin is not None:
        _, _, site = origin.partition("://")
        if site != request.headers.get("host"):
            raise HTTPException(403, "a request from the page of another site")
    access = http.accesses[request.scope["scheme"]]
    if access.anonymous_user is not None and not _is_own(host, http.node):
        # Also with a password: the one that such a node has is known to everybody.
        raise HTTPException(403, f"a node without users is not called {host}; ask for it by its address")
    said = request.headers.get("authorization")
    if said is None:
        if (user := _certified(access, request)) is not None:
            return user
        if access.anonymous_user is None:
            if page.open:
                return _STRANGER
            raise _unauthorized()
        return access.anonymous_user
    if request.scope["scheme"] == "http" and not (http.node.is_loopback or http.node.options.allow_plain):
        raise HTTPException(403, "a password that others on the way can read; there is another port, with TLS")
    return await _logged_in(http, access, request, *_credentials(said))


def _certified(access: Access, request: Request) -> User | None:
    """Return who has shown a certificate, and is a user here."""
    certificate = request.scope["state"]["certificate"] or {}
    found = (access.users.find(name) for name in names_in(certificate))
    return next((user for user in found if user is not None), None)


async def _logged_in(http: HttpState, access: Access, request: Request, name: str, password: str) -> User:
    """Return who has this password. Raises HTTPException. Whoever guesses waits."""
    address = request.client.host if request.client is not None else ""
    fits, proving = None, access.users.proving(name, password)
    if proving is not None:
        try:
            fits = await http.node.passwords.ask(address, name, proving)
        except TemporaryFailure as error:
            raise HTTPException(503, str(error)) from None
    user = access.users.check(name, password, fits)
    await asyncio.sleep(http.node.attempts.judge(address, name, right=user is not None))
    if user is None:
        raise _unauthorized()
    return user


def _is_own(host: str, node: NodeServices) -> bool:
    if host.lower() in ("localhost", node.host, *(place.host.lower() for place in node.topology.places)):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _credentials(said: str) -> tuple[str, str]:
    scheme, _, text = said.partition(" ")
    try:
        if scheme.lower() != "basic":
            raise _unauthorized()
        name, colon, password = base64.b64decode(text.strip(), validate=True).decode("utf-8").partition(":")
    except ValueError:  # no base64, no UTF-8, or no ASCII
        raise _unauthorized() from None
    if not colon:
        raise _unauthorized()
    return name, password


def _unauthorized() -> HTTPException:
    return HTTPException(401, "Unauthorized", {"WWW-Authenticate": 'Basic realm="Penstock"'})
