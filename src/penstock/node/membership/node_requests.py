"""Requests to other nodes over HTTP: one connection for each, with limits of time and size."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import h11

from penstock.errors import AccessDenied, RemoteProtocolError, Unreachable, UsageError
from penstock.node.cluster.topology import NodePlace
from penstock.wire.values.peer_json import read_peer_json

__all__ = ["NodeRequests", "NodeResponse", "make_basic_login"]

MAX_RESPONSE = 1024 * 1024
_READ_BYTES = 64 * 1024
_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class NodeResponse:
    """Response of another node.

    Attributes:
        status: the HTTP status.
        headers: the headers by their names in lower case.
        body: the body.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def reason(self) -> str:
        """Reason of a refusal, at most 500 characters: the JSON of a form's errors without its field, or plain text."""
        with suppress(RemoteProtocolError):
            errors = read_peer_json(self.body, dict[str, dict[str, str]], "errors of a form").get("errors", {})
            if errors:
                return "; ".join(errors.values())[:_LONGEST_REASON]
        return self.body.decode("utf-8", "replace").strip()[:_LONGEST_REASON]


def make_basic_login(user: str, password: str) -> dict[str, str]:
    """Return the header of a login with a password."""
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


class NodeRequests:
    """Sends requests to the HTTP ports of other nodes: over TLS if the node has such a port.

    Args:
        authority: file with the certificates that sign those of the nodes, PEM; None: those of the system.
        allow_plain: requests to other machines may go without TLS.
    """

    def __init__(self, authority: Path | None, *, allow_plain: bool) -> None:
        self._authority = authority
        self._allow_plain = allow_plain
        self._context: ssl.SSLContext | None = None

    def check(self, place: NodePlace) -> None:
        """Raise AccessDenied if a node can only be reached without TLS, and the network could read the requests."""
        if not (place.mgmt_tls or self._allow_plain or _is_loopback(place.host)):
            raise AccessDenied(
                f"node {place.address}: its requests would travel without TLS; start the nodes with a certificate and "
                "a TLS port, or allow plain logins"
            )

    async def post(
        self, place: NodePlace, path: str, body: bytes, headers: Mapping[str, str], *, seconds: float
    ) -> NodeResponse:
        """Send a POST request.

        Returns:
            The response.

        Raises:
            Unreachable: the node does not answer in time, or its answer is invalid.
            AccessDenied: as in `check`.
            UsageError: the file with the authority cannot be read.
        """
        self.check(place)
        fixed = {"host": place.address, "content-length": str(len(body)), "connection": "close"}
        request = h11.Request(method="POST", target=path, headers=[*{**fixed, **headers}.items()])
        port, context = (place.mgmt_tls, self._get_context()) if place.mgmt_tls else (place.mgmt, None)
        try:
            async with asyncio.timeout(seconds):
                streams = await asyncio.open_connection(place.host, port, ssl=context)
                try:
                    return await _exchange(streams, request, body)
                finally:
                    streams[1].transport.abort()
        except TimeoutError:
            raise Unreachable(f"node {place.address}: no answer within {seconds:g} s") from None
        except (OSError, h11.RemoteProtocolError, ValueError) as error:
            raise Unreachable(f"node {place.address}: {error}") from error

    def _get_context(self) -> ssl.SSLContext:
        if self._context is None:
            try:
                self._context = ssl.create_default_context(cafile=self._authority)
            except OSError as error:
                raise UsageError(f"{self._authority}: no certificates: {error.strerror or error}") from error
        return self._context


async def _exchange(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: h11.Request, body: bytes
) -> NodeResponse:
    """Send one request.

    Returns:
        The response.

    Raises:
        ValueError: the response is too long.
        h11.RemoteProtocolError: the response is invalid.
    """
    reader, writer = streams
    machine = h11.Connection(h11.CLIENT)
    for part in (request, h11.Data(data=body), h11.EndOfMessage()):
        writer.write(machine.send(part) or b"")
    await writer.drain()
    status, headers, received = 0, dict[str, str](), bytearray()
    while True:
        event: object = machine.next_event()
        if event is h11.NEED_DATA:
            machine.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
        elif isinstance(event, h11.Data):
            received += event.data
            if len(received) > MAX_RESPONSE:
                raise ValueError(f"a response over {MAX_RESPONSE} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return NodeResponse(status, headers, bytes(received))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
