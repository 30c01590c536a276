"""The buckets and users of a node, which an orchestrator reads and creates over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct, field

from penstock.client.connect.address import Address
from penstock.client.connect.map_request import check_http_secrecy
from penstock.client.connect.tls_context import make_tls_context
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.discovery.http_map import MOST_MAP_BYTES, make_authorization
from penstock.client.login.credentials import Credentials
from penstock.client.replication.node_identity import NodeIdentity, read_identity
from penstock.errors import AuthenticationFailed, OperationTimeout, RemoteProtocolError, Unreachable, UsageError
from penstock.names import quote_part
from penstock.wire.values.peer_json import read_peer_json

_TIMEOUT = 30.0
_POLL_SECONDS = 0.2
_QUOTA_MEGABYTES = 100  # the least that Couchbase accepts; a node of this project has no such limit


class _NodePage(Struct):
    this_node: bool = field(name="thisNode", default=False)
    node_uuid: str = field(name="nodeUUID", default="")
    start_id: str = field(name="startId", default="")


class _PoolPage(Struct):
    nodes: list[_NodePage]


class _ServerMap(Struct):
    rows: list[list[int]] = field(name="vBucketMap")


class _BucketPage(Struct):
    name: str
    server_map: _ServerMap | None = field(name="vBucketServerMap", default=None)


class _RolePage(Struct):
    role: str
    bucket_name: str = ""
    scope_name: str = ""
    collection_name: str = ""

    def __str__(self) -> str:
        places = [name for name in (self.bucket_name, self.scope_name, self.collection_name) if name]
        return f"{self.role}[{':'.join(places)}]" if places else self.role


class _UserPage(Struct):
    id: str
    roles: list[_RolePage]


class NodePages:
    """The HTTP pages of a node for buckets and users. Source: ns_server, menelaus_web_buckets and menelaus_web_rbac."""

    def __init__(self, address: Address, endpoint: Endpoint) -> None:
        """Create an access without a connection.

        Args:
            address: the node, whose options and credentials are used.
            endpoint: host and port for HTTP.
        """
        self._address = address
        self._endpoint = endpoint
        self._tls = make_tls_context(address.options) if address.tls else None

    async def read_identity(self) -> NodeIdentity | None:
        """Return the identity of the node; None for another server."""
        page = read_peer_json(await self._request("GET", "/pools/default"), _PoolPage, "description of nodes")
        own = next((node for node in page.nodes if node.this_node), _NodePage())
        return read_identity({"node_uuid": own.node_uuid, "start_id": own.start_id})

    async def read_buckets(self) -> dict[str, int]:
        """Return the buckets of the node: name -> number of vbuckets, 0 for a bucket without vbuckets."""
        text = await self._request("GET", "/pools/default/buckets")
        found = read_peer_json(text, list[_BucketPage], "list of buckets")
        return {each.name: 0 if each.server_map is None else len(each.server_map.rows) for each in found}

    async def create_bucket(self, name: str, vbuckets: int, replicas: int) -> None:
        """Create a bucket."""
        form = {"name": name, "numVBuckets": vbuckets, "replicaNumber": replicas, "ramQuota": _QUOTA_MEGABYTES}
        await self._request("POST", "/pools/default/buckets", form)

    async def read_users(self) -> dict[str, frozenset[str]]:
        """Return the users of the node: name -> roles, such as `data_reader[beer]`."""
        text = await self._request("GET", "/settings/rbac/users/local")
        found = read_peer_json(text, list[_UserPage], "list of users")
        return {each.id: frozenset(map(str, each.roles)) for each in found}

    async def has_login(self, login: Credentials) -> bool:
        """Return whether the node accepts the login of a user."""
        try:
            await NodePages(replace(self._address, credentials=login), self._endpoint)._request("GET", "/whoami")
        except AuthenticationFailed:
            return False
        return True

    async def put_user(self, login: Credentials, roles: tuple[str, ...]) -> None:
        """Create a user, or change roles and password of one. Raises UsageError if others could read the password."""
        check_http_secrecy(replace(self._address, credentials=login), self._endpoint[0])
        form = {"password": login.password, "roles": ",".join(roles)}
        await self._request("PUT", f"/settings/rbac/users/local/{quote_part(login.username)}", form)

    async def _request(self, method: str, page: str, form: Mapping[str, Any] | None = None) -> bytes:
        """Return the body of a response. A node that starts is waited for, as everywhere.

        Raises:
            Unreachable: the node does not answer for as long as the option retrySeconds.
            AuthenticationFailed: it refuses the login.
            UsageError: it refuses the request, or others could read the password.
            OperationTimeout: it does not end its response.
            RemoteProtocolError: its response is too long.
        """
        check_http_secrecy(self._address, self._endpoint[0])
        headers = {"content-type": "application/x-www-form-urlencoded"} if form is not None else {}
        if self._address.credentials is not None:
            headers["authorization"] = await make_authorization(self._address.credentials)
        body = None if form is None else urlencode(form)
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._address.options.retry_seconds
        while True:
            try:
                async with asyncio.timeout(_TIMEOUT):
                    return await asyncio.to_thread(self._send, method, page, body, headers)
            except Unreachable:
                if method != "GET" or clock() >= deadline:  # a change may have been made
                    raise
            except TimeoutError:
                raise OperationTimeout(
                    f"{format_endpoint(*self._endpoint)} did not answer {method} {page} within {_TIMEOUT:g} s"
                ) from None
            await asyncio.sleep(_POLL_SECONDS)

    def _send(self, method: str, page: str, body: str | None, headers: Mapping[str, str]) -> bytes:
        host, port = self._endpoint
        peer = format_endpoint(host, port)
        connection = (
            HTTPConnection(host, port, timeout=_TIMEOUT)
            if self._tls is None
            else HTTPSConnection(host, port, timeout=_TIMEOUT, context=self._tls)
        )
        try:
            connection.request(method, page, body, headers)
            response = connection.getresponse()
            status, found = response.status, response.read(MOST_MAP_BYTES + 1)
        except (OSError, HTTPException) as error:
            raise Unreachable(f"{peer} does not answer over HTTP: {str(error) or type(error).__name__}") from None
        finally:
            connection.close()
        if len(found) > MOST_MAP_BYTES:
            raise RemoteProtocolError(f"{peer} sent more than {MOST_MAP_BYTES} bytes for {page}")
        if status in (401, 403):
            raise AuthenticationFailed(f"{peer} refused the login over HTTP (status {status})")
        if not 200 <= status < 300:
            reason = found[:200].decode(errors="replace")
            raise UsageError(f"{peer} refused {method} {page} with status {status}: {reason}")
        return found
