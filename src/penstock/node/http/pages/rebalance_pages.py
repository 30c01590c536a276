"""Pages of the rebalance: start, progress, stop.

Source of the forms and responses: Couchbase's REST API for nodes, `/controller/rebalance` and `/pools/default/tasks`.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from penstock.errors import UsageError
from penstock.node.auth.roles import Privilege
from penstock.node.http.pages.forms import read_form
from penstock.node.http.pages.http_authentication import Page, PageRequest
from penstock.node.http.pages.http_documents import is_rebalancing
from penstock.node.rebalance.rebalance_request import MismatchedNodes, NoNodesLeft, RebalanceRequest

__all__ = ["PAGES"]

_POLL_SECONDS = 0.5


async def _rebalance(request: PageRequest) -> Response:
    form = await read_form(request.http_request)
    known, ejected = (_split_names(form.get(name, "")) for name in ("knownNodes", "ejectedNodes"))
    credentials = request.read_credentials()
    if credentials is None and request.node.users is not None:
        raise UsageError("a login without a password, expected one: this node logs in at the other nodes with it")
    try:
        await request.node.rebalancer.begin(RebalanceRequest(known, ejected), credentials)
    except MismatchedNodes as error:
        return request.make_json_response({"mismatch": 1, "errors": {"knownNodes": str(error)}}, 400)
    except NoNodesLeft as error:
        return request.make_json_response({"noKVNodesLeft": 1, "errors": {"ejectedNodes": str(error)}}, 400)
    return Response(status_code=200)


def _split_names(text: str) -> frozenset[str]:
    return frozenset(name for name in text.split(",") if name)


async def _stop(request: PageRequest) -> Response:
    request.node.rebalancer.stop()
    return Response(status_code=200)


async def _list_tasks(request: PageRequest) -> Response:
    node = request.node
    task: dict[str, Any] = {"type": "rebalance", "subtype": "rebalance", "statusIsStale": False}
    if not is_rebalancing(node):
        problem = {"errorMessage": f"Rebalance failed: {node.rebalancer.problem}"} if node.rebalancer.problem else {}
        return request.make_json_response(
            [{"type": "rebalance", "status": "notRunning", "statusIsStale": False} | problem]
        )
    task |= {"status": "running", "recommendedRefreshPeriod": _POLL_SECONDS}
    progress = node.rebalancer.progress
    if progress is not None:
        parts = {name: {"progress": 100 * part} for name, part in progress.by_node.items()}
        task |= {"progress": 100 * progress.total, "perNode": parts}
    return request.make_json_response([task])


async def _show_progress(request: PageRequest) -> Response:
    rebalancer = request.node.rebalancer
    if not is_rebalancing(request.node):
        problem = {"errorMessage": f"Rebalance failed: {rebalancer.problem}"} if rebalancer.problem else {}
        return request.make_json_response({"status": "none"} | problem)
    parts = {} if rebalancer.progress is None else rebalancer.progress.by_node
    return request.make_json_response(
        {"status": "running"} | {name: {"progress": part} for name, part in parts.items()}
    )


PAGES = (
    Page("POST", "/controller/rebalance", _rebalance, Privilege.SETTINGS),
    Page("POST", "/controller/stopRebalance", _stop, Privilege.SETTINGS),
    Page("GET", "/pools/default/tasks", _list_tasks),
    Page("GET", "/pools/default/rebalanceProgress", _show_progress),
)
