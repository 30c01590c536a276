"""The buckets and users of a node, which an orchestrator reads and creates over HTTP."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlencode

from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.login.credentials import Credentials
from penstock.errors import AuthenticationFailed, Unreachable, UsageError
from penstock.names import quote_part
from penstock.wire.values.peer_json import read_peer_json

__all__ = ["NodePages"]

_TIMEOUT = 30.0
_POLL_SECONDS = 0.2


class NodePages:
    """The HTTP pages of a node for buckets and users. Source: ns_server, menelaus_web_buckets and menelaus_web_rbac."""

    def __init__(
        self,
        endpoint: Endpoint,
        login: Credentials | None,
        tls: ssl.SSLContext | None = None,
        retry_seconds: float = 0.0,
    ) -> None:
        """Create an access without a connection.

        Args:
            endpoint: host and port for HTTP.
            login: the administrator; None: the node has no users.
            tls: TLS settings; None: no encryption.
            retry_seconds: time for a node that starts.
        """
        self._retry_seconds = retry_seconds
        self._endpoint = endpoint
        self._login = login
        self._tls = tls

    async def read_buckets(self) -> dict[str, int]:
        """Return the buckets of the node: name -> number of vbuckets, 0 for a bucket without vbuckets."""
        found = read_peer_json(
            await self._request("GET", "/pools/default/buckets"), list[dict[str, Any]], "list of buckets"
        )
        return {each["name"]: len(each.get("vBucketServerMap", {}).get("vBucketMap", ())) for each in found}

    async def create_bucket(self, name: str, vbuckets: int, replicas: int) -> None:
        """Create a bucket."""
        form = {"name": name, "numVBuckets": vbuckets, "replicaNumber": replicas, "ramQuota": 100}
        await self._request("POST", "/pools/default/buckets", form)

    async def read_users(self) -> dict[str, frozenset[str]]:
        """Return the users of the node: name -> roles, such as `data_reader[beer]`."""
        found = read_peer_json(
            await self._request("GET", "/settings/rbac/users/local"), list[dict[str, Any]], "list of users"
        )
        return {each["id"]: frozenset(map(_format_role, each["roles"])) for each in found}

    async def put_user(self, login: Credentials, roles: tuple[str, ...]) -> None:
        """Create a user, or change roles and password of one."""
        form = {"password": login.password, "roles": ",".join(roles)}
        await self._request("PUT", f"/settings/rbac/users/local/{quote_part(login.username)}", form)

    async def _request(self, method: str, page: str, form: Mapping[str, Any] | None = None) -> bytes:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._retry_seconds
        while True:
            try:
                return await asyncio.to_thread(self._send, method, page, form)
            except Unreachable:
                if method != "GET" or clock() >= deadline:
                    raise
            await asyncio.sleep(_POLL_SECONDS)

    def _send(self, method: str, page: str, form: Mapping[str, Any] | None) -> bytes:
        """Return the body of a response.

        Raises:
            Unreachable: the node does not answer.
            AuthenticationFailed: it refuses the login.
            UsageError: it refuses the request.
        """
        host, port = self._endpoint
        peer = format_endpoint(host, port)
        headers = {"content-type": "application/x-www-form-urlencoded"} if form is not None else {}
        if self._login is not None:
            pair = f"{self._login.username}:{self._login.password}".encode()
            headers["authorization"] = "Basic " + b64encode(pair).decode()
        connection = (
            HTTPConnection(host, port, timeout=_TIMEOUT)
            if self._tls is None
            else HTTPSConnection(host, port, timeout=_TIMEOUT, context=self._tls)
        )
        try:
            connection.request(method, page, None if form is None else urlencode(form), headers)
            response = connection.getresponse()
            status, body = response.status, response.read()
        except (OSError, HTTPException) as error:
            raise Unreachable(f"{peer} does not answer over HTTP: {str(error) or type(error).__name__}") from None
        finally:
            connection.close()
        if status in (401, 403):
            raise AuthenticationFailed(f"{peer} refused the login over HTTP (status {status})")
        if not 200 <= status < 300:
            raise UsageError(
                f"{peer} refused {method} {page} with status {status}: {body[:200].decode(errors='replace')}"
            )
        return body


def _format_role(role: Mapping[str, Any]) -> str:
    places = [role[name] for name in ("bucket_name", "scope_name", "collection_name") if role.get(name)]
    return f"{role['role']}[{':'.join(places)}]" if places else str(role["role"])
