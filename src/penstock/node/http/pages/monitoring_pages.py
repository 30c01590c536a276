"""Pages for programs that watch the node: metrics for Prometheus, health and readiness for orchestrators."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from prometheus_client.exposition import choose_encoder
from starlette.responses import PlainTextResponse, Response

from penstock.node.auth.roles import Privilege
from penstock.node.buckets.endpoint_reports import EndpointLoad
from penstock.node.buckets.served_bucket import BucketEndpoint, ServedBucket
from penstock.node.cluster.own_map import dump_json
from penstock.node.http.pages.http_authentication import Page, PageRequest, make_json_response
from penstock.node.http.pages.http_state import ManagedNode
from penstock.node.stats.node_metrics import NodeMetrics


async def _show_metrics(request: PageRequest) -> Response:
    """Return the metrics of the node, and of the buckets whose statistics the user may read."""
    user, node = request.user, request.node
    names = [name for name in node.buckets if user.has_privilege_within(Privilege.SIMPLE_STATS, name)]
    if not names and not user.has_privilege(Privilege.SIMPLE_STATS):
        refusal = {
            "message": "Forbidden. User needs the following permissions",
            "permissions": [Privilege.SIMPLE_STATS.name],
        }
        return make_json_response(dump_json(refusal), 403)
    metrics = NodeMetrics()
    metrics.add_node(node)
    for name in names:
        if (bucket := node.buckets.get(name)) is not None:
            measured = await _measure_loads(bucket)
            if not bucket.is_deleted:
                metrics.add_bucket(node, bucket, measured)
    encode, content_type = choose_encoder(request.http_request.headers.get("accept", ""))
    # On a thread: with a hundred buckets it takes longer than a turn of the event loop may.
    text = await asyncio.to_thread(encode, metrics)
    return Response(text, headers={"content-type": content_type, "cache-control": "no-store"})


async def _measure_loads(bucket: ServedBucket) -> dict[BucketEndpoint, EndpointLoad]:
    """Return the loads of a bucket's change-stream connections. Other requests are served between two of them."""
    found = {}
    await asyncio.sleep(0)
    for endpoint in tuple(bucket.endpoints.values()):
        found[endpoint] = endpoint.load()
        await asyncio.sleep(0)
    return found


async def _show_health(request: PageRequest) -> Response:
    """Return that the node is alive: its event loop serves requests. A restart opens no damaged bucket."""
    text = "; ".join(["alive", *_find_unopened(request.node)])
    return PlainTextResponse(f"{text}\n", headers={"cache-control": "no-store"})


async def _show_readiness(request: PageRequest) -> Response:
    """Return whether the node serves documents, with the reasons if it does not. No reason names a bucket."""
    problems = [*_find_problems(request.node)]
    document = {"ready": not problems, "problems": problems}
    return make_json_response(dump_json(document), 503 if problems else 200)


def _find_problems(node: ManagedNode) -> Iterator[str]:
    faulty = sum(served.store.log.room.fault is not None for served in node.buckets.values())
    if faulty:
        yield f"{faulty} of {len(node.buckets)} buckets refuse changes because of the disk"
    yield from _find_unopened(node)


def _find_unopened(node: ManagedNode) -> Iterator[str]:
    count = len(node.buckets.unopened)
    if count:
        yield f"{count} of {count + len(node.buckets)} buckets could not be opened; the log has the reasons"


PAGES = (
    Page("GET", "/metrics", _show_metrics),
    Page("GET", "/healthz", _show_health, is_open=True),
    Page("GET", "/readyz", _show_readiness, is_open=True),
)
