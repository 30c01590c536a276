"""Pages of the tasks of a cluster manager, of which a node has none: an orchestrator outside moves vbuckets.

Source of the responses: Couchbase's REST API, `/pools/default/tasks` and `/pools/default/rebalanceProgress`.
"""

from __future__ import annotations

from starlette.responses import Response

from penstock.node.http.pages.http_authentication import Page, PageRequest


async def _list_tasks(request: PageRequest) -> Response:
    return request.make_json_response([{"type": "rebalance", "status": "notRunning", "statusIsStale": False}])


async def _show_progress(request: PageRequest) -> Response:
    return request.make_json_response({"status": "none"})


PAGES = (
    Page("GET", "/pools/default/tasks", _list_tasks),
    Page("GET", "/pools/default/rebalanceProgress", _show_progress),
)
