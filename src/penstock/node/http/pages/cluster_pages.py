"""The node over HTTP: what it is, what there is to find, who is asking."""

from __future__ import annotations

from starlette.responses import Response

from penstock.node.auth.roles import Privilege
from penstock.node.cluster.release import VERSION
from penstock.node.cluster.topology import at_host
from penstock.node.http.pages import http_documents
from penstock.node.http.pages.http_authentication import Page, Visit, json_response

__all__ = ["PAGES"]


async def _root(visit: Visit) -> Response:
    version = {} if visit.is_stranger else {"version": VERSION}
    return visit.json({"name": "penstock", **version, "pools": "/pools"})


async def _pools(visit: Visit) -> Response:
    if visit.is_stranger:
        return visit.json(http_documents.pools_for_stranger())
    return visit.json(http_documents.pools(visit.node, is_admin=visit.user.may(Privilege.SETTINGS)))


async def _pool(visit: Visit) -> Response:
    said = http_documents.pool(visit.node, visit.items())
    said["bucketNames"] = [bucket for bucket in said["bucketNames"] if visit.user.sees(bucket["bucketName"])]
    return visit.json(said)


async def _nodes(visit: Visit) -> Response:
    return visit.json({"name": "default", "nodes": http_documents.nodes(visit.node, visit.items())})


async def _services(visit: Visit) -> Response:
    return json_response(at_host(visit.node.map.text, visit.host))


async def _whoami(visit: Visit) -> Response:
    user = visit.user
    roles = [{"role": role.name.value, "target": str(role.target)} for role in user.roles]
    return visit.json({"id": user.name, "domain": "local" if user.name else "anonymous", "roles": roles})


PAGES = (
    Page("GET", "/", _root, open=True),
    Page("GET", "/pools", _pools, open=True),
    Page("GET", "/pools/default", _pool),
    Page("GET", "/pools/nodes", _nodes),
    Page("GET", "/pools/default/nodeServices", _services),
    Page("GET", "/whoami", _whoami),
)
