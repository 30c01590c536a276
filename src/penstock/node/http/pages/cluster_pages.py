"""Pages of the node: its services, its buckets, and the user of the request."""

from __future__ import annotations

from starlette.responses import Response

from penstock.node.auth.roles import Privilege
from penstock.node.cluster.own_map import insert_host
from penstock.node.cluster.release import VERSION
from penstock.node.http.pages import http_documents
from penstock.node.http.pages.http_authentication import Page, PageRequest, make_json_response


async def _show_root(request: PageRequest) -> Response:
    version = {} if request.is_unauthenticated else {"version": VERSION}
    return request.make_json_response({"name": "penstock", **version, "pools": "/pools"})


async def _show_pools(request: PageRequest) -> Response:
    if request.is_unauthenticated:
        return request.make_json_response(http_documents.make_unauthenticated_pools())
    return request.make_json_response(
        http_documents.make_pools(request.node, is_admin=request.user.has_privilege(Privilege.SETTINGS))
    )


async def _show_pool(request: PageRequest) -> Response:
    pool = http_documents.make_pool(request.node, request.count_items())
    pool["bucketNames"] = [bucket for bucket in pool["bucketNames"] if request.user.can_see(bucket["bucketName"])]
    return request.make_json_response(pool)


async def _list_nodes(request: PageRequest) -> Response:
    return request.make_json_response(
        {"name": "default", "nodes": http_documents.make_nodes(request.node, request.count_items())}
    )


async def _show_node_services(request: PageRequest) -> Response:
    return make_json_response(insert_host(request.node.map.text, request.host))


async def _show_own_user(request: PageRequest) -> Response:
    user = request.user
    roles = [{"role": role.name.value, "target": str(role.target)} for role in user.roles]
    return request.make_json_response(
        {"id": user.name, "domain": "local" if user.name else "anonymous", "roles": roles}
    )


PAGES = (
    Page("GET", "/", _show_root, is_open=True),
    Page("GET", "/pools", _show_pools, is_open=True),
    Page("GET", "/pools/default", _show_pool),
    Page("GET", "/pools/nodes", _list_nodes),
    Page("GET", "/pools/default/nodeServices", _show_node_services),
    Page("GET", "/whoami", _show_own_user),
)
