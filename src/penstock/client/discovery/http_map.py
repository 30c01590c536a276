"""The cluster map over HTTP, from the management port of a node: for servers without GET_CLUSTER_CONFIG.

A node streams the map as chunks of JSON, each followed by four newlines, and sends it again after each change. This
client reads the first one and closes the connection. Releases before 2.5 have only the second page.
Source: ns_server, menelaus_web_buckets.erl (handle_bucket_info_streaming) and bucket_info_cache.erl.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from typing import TYPE_CHECKING

from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.login.credentials import Credentials, Login
from penstock.errors import (
    AuthenticationFailed,
    BucketNotServed,
    ConnectionClosed,
    OperationTimeout,
    RemoteProtocolError,
    UntrustedNode,
)
from penstock.names import quote_part

if TYPE_CHECKING:
    import h11

HTTP_PORT, HTTP_TLS_PORT = 8091, 18091
_PAGES = ("/pools/default/bs/", "/pools/default/bucketsStreaming/")
_END_OF_MAP = b"\n\n\n\n"

MOST_MAP_BYTES = 20 * 1024 * 1024
"""Bytes that are read of a page, at most."""

_READ_BYTES = 64 * 1024


async def fetch_bucket_map(
    endpoint: Endpoint, bucket: str, credentials: Login | None, tls: ssl.SSLContext | None, timeout: float
) -> bytes:
    """Return the cluster map of a bucket as JSON.

    Args:
        endpoint: host and management port of a node.
        bucket: the name of the bucket.
        credentials: the login; None: none. The caller has checked that it may be sent.
        tls: TLS settings; None: no encryption.
        timeout: seconds for everything.

    Raises:
        BucketNotServed: the node does not have the bucket, or cannot send its map at the moment.
        AuthenticationFailed: the node refuses the login.
        UntrustedNode: the node's certificate is not trusted.
        RemoteProtocolError: the response is no HTTP, or too long.
        OSError, OperationTimeout, ConnectionClosed: the node cannot be reached, or does not answer.
    """
    import h11  # here, because most clients never need it

    peer = format_endpoint(*endpoint)
    headers = [("host", peer), ("accept", "application/json"), ("connection", "close")]
    if credentials is not None:
        headers.append(("authorization", await make_authorization(credentials)))
    try:
        async with asyncio.timeout(timeout):
            for page in _PAGES:
                request = h11.Request(method="GET", target=page + quote_part(bucket), headers=headers)
                status, text = await _fetch_page(endpoint, request, tls)
                if status != 404:
                    break
    except TimeoutError:
        raise OperationTimeout(f"{peer} did not send the cluster map over HTTP within {timeout:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise UntrustedNode(
            f"the certificate of {peer} is not trusted: {error.verify_message}; option ca names its authority"
        ) from None
    except asyncio.IncompleteReadError:
        raise ConnectionClosed(f"{peer} ended its HTTP response within the cluster map") from None
    except h11.RemoteProtocolError as error:
        raise RemoteProtocolError(
            f"{peer} sent no valid HTTP ({error}); expected a management port of Couchbase ({HTTP_PORT}, with TLS "
            f"{HTTP_TLS_PORT})"
        ) from None
    if status in (401, 403):
        raise AuthenticationFailed(f"{peer} refused the login over HTTP (status {status})")
    if status == 404:
        raise BucketNotServed(f"no bucket {bucket!r} on {peer}; expected the name of a bucket of this cluster")
    if status != 200 or not text.strip():
        raise BucketNotServed(f"{peer} sent no cluster map over HTTP (status {status}, {len(text)} bytes)")
    return text


async def make_authorization(credentials: Login) -> str:
    """Return the header `authorization` of a login."""
    if isinstance(credentials, Credentials):
        return "Basic " + b64encode(f"{credentials.username}:{credentials.password}".encode()).decode()
    return "Bearer " + await asyncio.to_thread(credentials.get_token)


async def _fetch_page(endpoint: Endpoint, request: h11.Request, tls: ssl.SSLContext | None) -> tuple[int, bytes]:
    """Return the status of a page, and its first map.

    Raises IncompleteReadError if the connection ends before the page does.
    """
    import h11

    machine = h11.Connection(h11.CLIENT)
    reader, writer = await asyncio.open_connection(*endpoint, ssl=tls)
    status, text, searched, has_ended = 0, bytearray(), 0, False
    try:
        writer.write((machine.send(request) or b"") + (machine.send(h11.EndOfMessage()) or b""))
        while (end := text.find(_END_OF_MAP, searched)) < 0:
            searched = max(0, len(text) - len(_END_OF_MAP))
            event: object = machine.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(_READ_BYTES)
                has_ended = not data
                machine.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data) and status == 200:
                text += event.data
                _check_length(text, endpoint)
            elif isinstance(event, h11.EndOfMessage) or status not in (0, 200):
                break
        return status, bytes(text[:end] if end >= 0 else text)
    except h11.RemoteProtocolError:
        if has_ended:
            raise asyncio.IncompleteReadError(bytes(text), None) from None
        raise
    finally:
        writer.transport.abort()


def _check_length(text: bytearray, endpoint: Endpoint) -> None:
    if len(text) > MOST_MAP_BYTES:
        raise RemoteProtocolError(
            f"cluster map of {format_endpoint(*endpoint)} over HTTP is longer than {MOST_MAP_BYTES} bytes"
        )
