"""The ASGI application: all pages, and the responses to their exceptions."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import (
    AccessDenied,
    BucketNotServed,
    Error,
    InvalidArguments,
    NotSupported,
    RemoteProtocolError,
    StatusError,
    Unreachable,
    UsageError,
)
from penstock.node.cluster.own_map import dump_json
from penstock.node.http.dashboard.dashboard_pages import make_dashboard_pages
from penstock.node.http.pages import (
    address_pages,
    bucket_pages,
    cluster_pages,
    collection_pages,
    monitoring_pages,
    task_pages,
    user_pages,
)
from penstock.node.http.pages.forms import FormErrors
from penstock.node.http.pages.http_authentication import MISSING, make_json_response, make_route
from penstock.node.http.pages.http_state import HttpState

PAGES = (
    *cluster_pages.PAGES,
    *address_pages.PAGES,
    *task_pages.PAGES,
    *bucket_pages.PAGES,
    *collection_pages.PAGES,
    *user_pages.PAGES,
    *monitoring_pages.PAGES,
)
"""The pages of management. The dashboard has pages of its own."""


_REFUSALS = (UsageError, InvalidArguments, NotSupported, AccessDenied, Unreachable, RemoteProtocolError)
"""A page lets these pass: their message is all that the client needs."""


def make_app(http: HttpState) -> Starlette:
    """Return the application of a node."""
    app = Starlette(
        routes=[make_route(http, page) for page in (*PAGES, *make_dashboard_pages(http))],
        middleware=[Middleware(TrailingSlashes)],
        exception_handlers={
            HTTPException: _answer_refusal,
            FormErrors: _answer_form_errors,
            ClientDisconnect: _answer_disconnect,
            BucketNotServed: _answer_missing_bucket,
            **dict.fromkeys(_REFUSALS, _answer_refused_change),
            StatusError: _answer_failure,
            Error: _answer_error,
        },
    )
    app.router.redirect_slashes = False
    return app


class TrailingSlashes:
    """Serves a path that ends with slashes like the path without them.

    Couchbase's Java SDK 3.11 asks for `/pools/default/buckets/` and follows no redirect. A slash that is sent as %2F
    belongs to a name, and stays.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request with the shorter path."""
        path, raw = scope["path"], scope["raw_path"]
        slashes = len(raw) - len(raw.rstrip(b"/"))
        await self._app({**scope, "path": path[: len(path) - slashes] or "/"}, receive, send)


async def _answer_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, headers=dict(error.headers or {}))


async def _answer_form_errors(request: Request, error: Exception) -> Response:
    assert isinstance(error, FormErrors)
    return make_json_response(dump_json({"errors": dict(error.errors)}), error.status)


async def _answer_missing_bucket(request: Request, error: Exception) -> Response:
    """Return the response for a bucket that the cluster has deleted. This node deletes it soon."""
    return PlainTextResponse(f"{MISSING}\n", 404)


async def _answer_refused_change(request: Request, error: Exception) -> Response:
    return await _answer_form_errors(request, FormErrors({"_": str(error)}))


async def _answer_failure(request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 503)


async def _answer_error(request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 500)


async def _answer_disconnect(request: Request, error: Exception) -> Response:
    """Return a response that no client receives: the client left before its request was complete."""
    return Response(status_code=400)
