"""Pages of the dashboard: its files, the state of a bucket, the details of a vbucket, changes, and the end of a stream.

All need a login, as management does. The state needs the privilege to read statistics of the bucket. Changes need the
privilege to stream them, and to end a stream needs the privilege to change settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.client.dashboard.dashboard_document import VbucketDetail
from penstock.client.dashboard.shown_change import NEWEST_CHANGES, REQUEST_HEADER, TailRequest
from penstock.client.dashboard.static_files import ASSETS, PREFIX, SECURITY_HEADERS, find_file
from penstock.digits import read_digits
from penstock.errors import KeyNotFound
from penstock.node.auth.roles import Privilege
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.http.dashboard.bucket_sampler import SamplerList
from penstock.node.http.dashboard.change_page import ChangePageReader, make_change_filter
from penstock.node.http.dashboard.endpoint_rows import make_stream_row
from penstock.node.http.dashboard.event_stream import EventStream
from penstock.node.http.dashboard.viewer_documents import ViewerDocuments
from penstock.node.http.pages.forms import FormErrors, read_body
from penstock.node.http.pages.http_authentication import MISSING, Page, PageRequest
from penstock.node.http.pages.http_state import HttpState
from penstock.node.stats.stat_groups import read_durability, read_seqnos, read_vbucket_details
from penstock.store.documents.vbucket import Vbucket

T = TypeVar("T")


class _EndRequest(msgspec.Struct):
    """The body of a request to end streams; name: that of the connection."""

    name: str


class _DashboardPages:
    """The pages of one node.

    Args:
        http: the state of the HTTP server.
    """

    def __init__(self, http: HttpState) -> None:
        self._samplers = SamplerList(http.node)

    async def show_page(self, request: PageRequest) -> Response:
        """Return the page."""
        return _show_file(request, "index.html")

    async def show_asset(self, request: PageRequest) -> Response:
        """Return a file of the page."""
        return _show_file(request, request.get_path_part("name"))

    async def show_state(self, request: PageRequest) -> Response:
        """Return the state of a bucket once."""
        sampler = self._samplers.find(_choose_bucket(request))
        return _make_response(await ViewerDocuments(request, sampler).make_next())

    async def stream_state(self, request: PageRequest) -> Response:
        """Return the state of a bucket each second, as server-sent events."""
        return EventStream(request, self._samplers.find(_choose_bucket(request)))

    async def show_vbucket(self, request: PageRequest) -> Response:
        """Return the details of a vbucket, with its streams."""
        bucket, vbucket = _find_vbucket(request)
        streams = []
        for endpoint in tuple(bucket.endpoints.values()):
            report = endpoint.report()
            numbers = [number for number, stream in enumerate(report.streams) if stream.vbucket == vbucket.id]
            streams += [make_stream_row(report, number) for number in numbers]
            await asyncio.sleep(0)
        stats = {}
        if vbucket.history.state is not None:
            for read in (read_vbucket_details, read_seqnos, read_durability):
                for name, value in read(bucket, vbucket):
                    stats[name.partition(":")[2] or "state"] = str(value)
        log = [(str(entry.vbuuid), entry.seqno) for entry in vbucket.history.failover_log]
        return _make_response(VbucketDetail(vbucket.id, stats, log, streams))

    async def list_newest(self, request: PageRequest) -> Response:
        """Return the newest changes of a vbucket."""
        bucket, vbucket = _find_vbucket(request)
        page = await ChangePageReader(bucket).read_newest(vbucket, NEWEST_CHANGES)
        return _make_response({"vbucket": vbucket.id, **page._asdict()})

    async def read_changes(self, request: PageRequest) -> Response:
        """Return the changes above some positions, and the positions to ask for next."""
        _check_request_header(request)
        bucket, wanted = request.find_bucket(), await _read_json(request, TailRequest)
        vbuckets = bucket.store.vbuckets
        highs = [vbucket.changes.high_seqno for vbucket in vbuckets]
        positions = wanted.positions if len(wanted.positions) == len(vbuckets) else highs
        if any(not 0 <= number < len(vbuckets) for number in wanted.vbuckets):
            raise FormErrors({"vbuckets": f"expected numbers below {len(vbuckets)}"})
        pushed = make_change_filter(bucket, wanted.filter_key, wanted.filter_value)
        reader = ChangePageReader(bucket, _find_collections(bucket, wanted.collections), pushed)
        page = await reader.read_after(positions, wanted.vbuckets or None)
        return _make_response({"positions": highs, **page._asdict()})

    async def end_streams(self, request: PageRequest) -> Response:
        """End the change-stream connections of a name.

        Returns:
            The response, with the number of connections.
        """
        _check_request_header(request)
        bucket, wanted = request.find_bucket(), await _read_json(request, _EndRequest)
        try:
            ended = bucket.close_endpoints(wanted.name.encode())
        except KeyNotFound as error:
            raise HTTPException(404, str(error), SECURITY_HEADERS) from None
        return _make_response({"ended": ended})


def make_dashboard_pages(http: HttpState) -> tuple[Page, ...]:
    """Return the pages of the dashboard of a node."""
    pages = _DashboardPages(http)
    bucket = f"{PREFIX}/buckets/{{bucket}}"
    vbucket = f"{bucket}/vbuckets/{{vbucket}}"
    return (
        Page("GET", PREFIX, pages.show_page),
        Page("GET", f"{ASSETS}/{{name}}", pages.show_asset),
        Page("GET", f"{PREFIX}/state", pages.show_state),
        Page("GET", f"{PREFIX}/events", pages.stream_state),
        Page("GET", vbucket, pages.show_vbucket, Privilege.SIMPLE_STATS),
        Page("GET", f"{vbucket}/changes", pages.list_newest, Privilege.STREAM),
        Page("POST", f"{bucket}/changes", pages.read_changes, Privilege.STREAM),
        Page("POST", f"{bucket}/streams/end", pages.end_streams, Privilege.SETTINGS),
    )


def _show_file(request: PageRequest, name: str) -> Response:
    found = find_file(name)
    if found is None:
        raise HTTPException(404, MISSING, SECURITY_HEADERS)
    headers = found.make_headers()
    if request.http_request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers)
    return Response(found.content, headers={**headers, "content-type": found.media_type})


def _choose_bucket(request: PageRequest) -> ServedBucket:
    """Return the bucket of the query, or the first one of which the user may read statistics.

    Raises:
        HTTPException: the user may read those of no bucket, or the bucket does not exist for the user.
    """
    user, buckets = request.user, request.node.buckets
    allowed = [name for name in buckets if user.has_privilege(Privilege.SIMPLE_STATS, name)]
    wanted = request.http_request.query_params.get("bucket") or next(iter(allowed), None)
    if wanted is None and not len(buckets) and user.has_privilege(Privilege.SIMPLE_STATS):
        raise HTTPException(404, "the node has no bucket", SECURITY_HEADERS)
    if wanted is not None and (wanted not in buckets or not user.can_see(wanted)):
        raise HTTPException(404, MISSING, SECURITY_HEADERS)
    if wanted not in allowed:
        raise HTTPException(403, f"Forbidden. User needs {Privilege.SIMPLE_STATS.name}", SECURITY_HEADERS)
    return buckets[wanted]


def _find_vbucket(request: PageRequest) -> tuple[ServedBucket, Vbucket]:
    bucket, text = request.find_bucket(), request.get_path_part("vbucket")
    number = read_digits(text, len(bucket.store.vbuckets) - 1)
    if number is None:
        raise HTTPException(404, MISSING, SECURITY_HEADERS)
    return bucket, bucket.store.vbuckets[number]


def _find_collections(bucket: ServedBucket, names: Sequence[str]) -> list[int] | None:
    """Return the ids of collections; None for all. Raises FormErrors for an unknown one."""
    if not names:
        return None
    manifest = bucket.store.manifests.current
    known = {f"{scope.name}.{one.name}": one.id for scope in manifest.scopes for one in scope.collections}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise FormErrors({"collections": f"no collection {unknown[0][:80]!r}, expected scope.collection"})
    return [known[name] for name in names]


def _check_request_header(request: PageRequest) -> None:
    if request.http_request.headers.get(REQUEST_HEADER) != "dashboard":
        raise HTTPException(403, f"a request without the header {REQUEST_HEADER}: dashboard", SECURITY_HEADERS)


async def _read_json(request: PageRequest, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await read_body(request.http_request), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormErrors({"_": f"the body is not as expected: {error}"}) from None


def _make_response(document: Any) -> Response:
    headers = {**SECURITY_HEADERS, "cache-control": "no-store", "content-type": "application/json"}
    return Response(msgspec.json.encode(document), headers=headers)
