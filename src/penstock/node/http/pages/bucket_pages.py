"""Pages of buckets: lookup, creation, change, flush and deletion."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.errors import Busy, TemporaryFailure
from penstock.names import quote_part
from penstock.node.auth.roles import Privilege
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.cluster.own_map import dump_json, insert_host
from penstock.node.http.pages import http_documents
from penstock.node.http.pages.document_stream import MapStream
from penstock.node.http.pages.forms import FormErrors, change_spec, make_spec, read_form
from penstock.node.http.pages.http_authentication import Page, PageRequest, make_json_response


async def _list_buckets(request: PageRequest) -> Response:
    items = request.count_items()
    found = [_make_document(request, served, items) for served in request.list_buckets()]
    for name, error in request.node.buckets.unopened.items():
        if request.user.can_see(name):
            found.append(http_documents.make_unopened_bucket(request.node, name, str(error)))
    return request.make_json_response(found)


async def _show_bucket(request: PageRequest) -> Response:
    return request.make_json_response(_make_document(request, request.find_bucket(), request.count_items()))


def _make_document(request: PageRequest, served: ServedBucket, items: int) -> dict[str, Any]:
    return http_documents.make_bucket(request.node, served, request.filter_manifest(served), items)


async def _show_terse_bucket(request: PageRequest) -> Response:
    return make_json_response(insert_host(request.find_bucket().cluster_map.text, request.host))


async def _stream_terse_bucket(request: PageRequest) -> Response:
    served = request.find_bucket()
    return MapStream(request, served, lambda: insert_host(served.cluster_map.text, request.host))


async def _stream_bucket(request: PageRequest) -> Response:
    served = request.find_bucket()

    def make() -> bytes:
        return insert_host(dump_json(_make_document(request, served, request.count_items())), request.host)

    return MapStream(request, served, make)


async def _show_stats(request: PageRequest) -> Response:
    return request.make_json_response(http_documents.make_bucket_stats(request.node, request.find_bucket()))


async def _show_stat(request: PageRequest) -> Response:
    name = request.get_path_part("name")
    document = http_documents.make_bucket_stat(request.node, request.find_bucket(), name)
    if document is None:
        raise HTTPException(404, f"no statistic {name!r}")
    return request.make_json_response(document)


async def _list_nodes(request: PageRequest) -> Response:
    return request.make_json_response(http_documents.make_bucket_nodes(request.node, request.find_bucket()))


async def _show_node(request: PageRequest) -> Response:
    return request.make_json_response(_find_server(request))


async def _show_node_stats(request: PageRequest) -> Response:
    """Return the statistics of this node. Nodes do not ask each other."""
    places, own_number = http_documents.list_places(request.node, request.find_bucket())
    own = insert_host(places[own_number].address.encode(), request.host).decode()
    if _find_server(request)["hostname"] != own:
        raise HTTPException(404, "statistics of another node: ask that node")
    return request.make_json_response(http_documents.make_bucket_stats(request.node, request.find_bucket()))


def _find_server(request: PageRequest) -> dict[str, Any]:
    """Return the entry of the node in the path. Raises HTTPException for a node that the bucket is not on."""
    known = json.loads(
        insert_host(dump_json(http_documents.make_bucket_nodes(request.node, request.find_bucket())), request.host)
    )
    name = request.get_path_part("node")
    for server in known["servers"]:
        if server["hostname"] == name:
            return dict(server)
    raise HTTPException(404, f"no node {name!r}")


async def _create_bucket(request: PageRequest) -> Response:
    form = await read_form(request.http_request)
    spec = make_spec(form, request.node.default_vbuckets)
    if spec.name in request.node.buckets or spec.name in request.node.buckets.unopened:
        raise FormErrors({"name": "Bucket with given name already exists"})
    await request.node.buckets.create(spec)
    return Response(status_code=202, headers={"location": f"/pools/default/buckets/{quote_part(spec.name)}"})


async def _change_bucket(request: PageRequest) -> Response:
    served = request.find_bucket()
    spec = change_spec(served.spec, await read_form(request.http_request))
    request.node.buckets.change_spec(spec)
    return Response(status_code=200)


async def _delete_bucket(request: PageRequest) -> Response:
    name = request.find_bucket().store.name
    await request.node.buckets.delete(name)
    return Response(status_code=200)


async def _flush_bucket(request: PageRequest) -> Response:
    served = request.find_bucket()
    if not served.can_be_flushed:
        raise FormErrors({"_": "Flush is disabled for the bucket"})
    await request.node.buckets.flush(served.store.name)
    return Response(status_code=200)


async def _compact_bucket(request: PageRequest) -> Response:
    """Begin to rewrite the whole log. The response does not wait for the end.

    Returns:
        An empty response.
    """
    served = request.find_bucket()
    if served.compactor is not None:
        try:
            served.compactor.compact_all(b"").start_wait(lambda _: None)
        except (Busy, TemporaryFailure) as error:
            raise HTTPException(503, str(error)) from None
    return Response(status_code=200)


_BUCKETS = "/pools/default/buckets"
_BUCKET = f"{_BUCKETS}/{{bucket}}"

PAGES = (
    Page("GET", _BUCKETS, _list_buckets),
    Page("POST", _BUCKETS, _create_bucket, Privilege.MANAGE_BUCKETS),
    Page("GET", _BUCKET, _show_bucket),
    Page("POST", _BUCKET, _change_bucket, Privilege.MANAGE_BUCKETS),
    Page("DELETE", _BUCKET, _delete_bucket, Privilege.MANAGE_BUCKETS),
    Page("GET", "/pools/default/b/{bucket}", _show_terse_bucket),
    Page("GET", "/pools/default/bs/{bucket}", _stream_terse_bucket),
    Page("GET", "/pools/default/bucketsStreaming/{bucket}", _stream_bucket),
    Page("GET", f"{_BUCKET}/stats", _show_stats, Privilege.SIMPLE_STATS),
    Page("GET", f"{_BUCKET}/stats/{{name}}", _show_stat, Privilege.SIMPLE_STATS),
    Page("GET", f"{_BUCKET}/nodes", _list_nodes),
    Page("GET", f"{_BUCKET}/nodes/{{node}}", _show_node),
    Page("GET", f"{_BUCKET}/nodes/{{node}}/stats", _show_node_stats, Privilege.SIMPLE_STATS),
    Page("POST", f"{_BUCKET}/controller/doFlush", _flush_bucket, Privilege.MANAGE_BUCKETS),
    Page("POST", f"{_BUCKET}/controller/compactBucket", _compact_bucket, Privilege.MANAGE_BUCKETS),
)
