"""Buckets over HTTP: looked up, made, changed, emptied and deleted."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.errors import Busy, TemporaryFailure, UsageError
from penstock.node.auth.roles import Privilege
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.cluster.topology import at_host, dump
from penstock.node.http.pages import http_documents
from penstock.node.http.pages.document_stream import MapStream
from penstock.node.http.pages.forms import FormErrors, changed_spec, new_spec, read_form
from penstock.node.http.pages.http_authentication import Page, Visit, json_response

__all__ = ["PAGES"]


async def _buckets(visit: Visit) -> Response:
    items = visit.items()
    return visit.json([_document(visit, served, items) for served in visit.buckets()])


async def _bucket(visit: Visit) -> Response:
    return visit.json(_document(visit, visit.bucket(), visit.items()))


def _document(visit: Visit, served: ServedBucket, items: int) -> dict[str, Any]:
    return http_documents.bucket(visit.node, served, visit.manifest(served), items)


async def _terse(visit: Visit) -> Response:
    return json_response(at_host(visit.bucket().map.text, visit.host))


async def _terse_stream(visit: Visit) -> Response:
    served = visit.bucket()
    return MapStream(visit, served, lambda: at_host(served.map.text, visit.host))


async def _stream(visit: Visit) -> Response:
    served = visit.bucket()

    def make() -> bytes:
        return at_host(dump(_document(visit, served, visit.items())), visit.host)

    return MapStream(visit, served, make)


async def _stats(visit: Visit) -> Response:
    return visit.json(http_documents.bucket_stats(visit.node, visit.bucket()))


async def _stat(visit: Visit) -> Response:
    name = visit.argument("name")
    said = http_documents.bucket_stat(visit.node, visit.bucket(), name)
    if said is None:
        raise HTTPException(404, f"no statistic {name!r}")
    return visit.json(said)


async def _nodes(visit: Visit) -> Response:
    return visit.json(http_documents.bucket_nodes(visit.node, visit.bucket()))


async def _node(visit: Visit) -> Response:
    return visit.json(_server(visit))


async def _node_stats(visit: Visit) -> Response:
    """Return the statistics of this node; the nodes do not ask each other."""
    if _server(visit)["hostname"] != at_host(visit.node.topology.here.address.encode(), visit.host).decode():
        raise HTTPException(404, "statistics of another node: ask that node")
    return visit.json(http_documents.bucket_stats(visit.node, visit.bucket()))


def _server(visit: Visit) -> dict[str, Any]:
    """Return what is known of the node in the path. Raises HTTPException for one that the bucket is not on."""
    known = json.loads(at_host(dump(http_documents.bucket_nodes(visit.node, visit.bucket())), visit.host))
    wanted = visit.argument("node")
    for server in known["servers"]:
        if server["hostname"] == wanted:
            return dict(server)
    raise HTTPException(404, f"no node {wanted!r}")


async def _create(visit: Visit) -> Response:
    form = await read_form(visit.request)
    spec = new_spec(form, visit.node.usual_vbuckets)
    if spec.name in visit.node.buckets:
        raise FormErrors({"name": "Bucket with given name already exists"})
    try:
        await visit.node.buckets.create(spec)
    except UsageError as error:
        raise FormErrors({"_": str(error)}) from None
    return Response(status_code=202, headers={"location": f"/pools/default/buckets/{spec.name}"})


async def _change(visit: Visit) -> Response:
    served = visit.bucket()
    spec = changed_spec(served.spec, await read_form(visit.request))
    try:
        visit.node.buckets.change(spec)
    except UsageError as error:
        raise FormErrors({"_": str(error)}) from None
    return Response(status_code=200)


async def _delete(visit: Visit) -> Response:
    name = visit.bucket().store.name
    try:
        await visit.node.buckets.delete(name)
    except UsageError as error:
        raise FormErrors({"_": str(error)}) from None
    return Response(status_code=200)


async def _flush(visit: Visit) -> Response:
    served = visit.bucket()
    if not served.may_be_flushed:
        raise FormErrors({"_": "Flush is disabled for the bucket"})
    await visit.node.buckets.flush(served.store.name)
    return Response(status_code=200)


async def _compact(visit: Visit) -> Response:
    """Begin to rewrite all of the log; nobody waits for the end."""
    served = visit.bucket()
    if served.compactor is not None:
        try:
            served.compactor.everything(b"").begin(lambda _: None)
        except (Busy, TemporaryFailure) as error:
            raise HTTPException(503, str(error)) from None
    return Response(status_code=200)


_BUCKETS = "/pools/default/buckets"
_BUCKET = f"{_BUCKETS}/{{bucket}}"

PAGES = (
    Page("GET", _BUCKETS, _buckets),
    Page("POST", _BUCKETS, _create, Privilege.MANAGE_BUCKETS),
    Page("GET", _BUCKET, _bucket),
    Page("POST", _BUCKET, _change, Privilege.MANAGE_BUCKETS),
    Page("DELETE", _BUCKET, _delete, Privilege.MANAGE_BUCKETS),
    Page("GET", "/pools/default/b/{bucket}", _terse),
    Page("GET", "/pools/default/bs/{bucket}", _terse_stream),
    Page("GET", "/pools/default/bucketsStreaming/{bucket}", _stream),
    Page("GET", f"{_BUCKET}/stats", _stats, Privilege.SIMPLE_STATS),
    Page("GET", f"{_BUCKET}/stats/{{name}}", _stat, Privilege.SIMPLE_STATS),
    Page("GET", f"{_BUCKET}/nodes", _nodes),
    Page("GET", f"{_BUCKET}/nodes/{{node}}", _node),
    Page("GET", f"{_BUCKET}/nodes/{{node}}/stats", _node_stats, Privilege.SIMPLE_STATS),
    Page("POST", f"{_BUCKET}/controller/doFlush", _flush, Privilege.MANAGE_BUCKETS),
    Page("POST", f"{_BUCKET}/controller/compactBucket", _compact, Privilege.MANAGE_BUCKETS),
)
