"""Pages of failovers: the settings of the automatic one, a failover on request, and the way back.

Source of the forms and responses: Couchbase's REST API for nodes, `/settings/autoFailover` and `/controller/failOver`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.errors import UsageError
from penstock.node.agreement.failover_settings import FailoverSettings
from penstock.node.auth.roles import Privilege
from penstock.node.http.pages.forms import FormErrors, make_number_parser, parse_flag, read_form
from penstock.node.http.pages.http_authentication import Page, PageRequest
from penstock.node.membership.cluster_document import ClusterDocument, ClusterNode
from penstock.node.membership.cluster_member import ChangeDocument, ClusterMember
from penstock.node.membership.failover_decision import restore_member
from penstock.node.membership.failover_watch import fail_over_on_request

__all__ = ["PAGES"]

_FIELDS: dict[str, tuple[str, Callable[[str], object]]] = {
    "enabled": ("enabled", parse_flag),
    "timeout": ("timeout", make_number_parser(1, 3600)),
    "maxCount": ("max_count", make_number_parser(1, 100)),
}


async def _show_settings(request: PageRequest) -> Response:
    member = request.node.cluster.member
    found = FailoverSettings() if member is None else member.state.document.failover
    return request.make_json_response(
        {"enabled": found.enabled, "timeout": found.timeout, "maxCount": found.max_count, "count": found.count}
    )


async def _change_settings(request: PageRequest) -> Response:
    form = await read_form(request.http_request)
    found, wrong = dict[str, object](), dict[str, str]()
    for name, text in form.items():
        try:
            if name in _FIELDS:
                attribute, parse = _FIELDS[name]
                found[attribute] = parse(text)
        except ValueError as error:
            wrong[name] = str(error)
    if "enabled" not in form:
        wrong["enabled"] = "The value must be supplied"
    if wrong:
        raise FormErrors(wrong)

    def change(document: ClusterDocument) -> ClusterDocument:
        settings = replace(document.failover, **found)
        settings.check(document.lease_seconds)
        return replace(document, failover=settings)

    return await _change_document(request, change)


async def _reset_count(request: PageRequest) -> Response:
    return await _change_document(
        request, lambda document: replace(document, failover=replace(document.failover, count=0))
    )


async def _fail_over_node(request: PageRequest) -> Response:
    form = await read_form(request.http_request)
    if form.get("allowUnsafe", "false") != "false":
        raise FormErrors({"allowUnsafe": "a failover without a majority is not supported, expected false"})
    member, lost = _get_member(request), _find_node(request, form).id
    if member.state.document.rebalancing not in ("", lost):
        raise HTTPException(503, "Rebalance running.")
    await fail_over_on_request(member, lost)
    return Response(status_code=200)


async def _restore_node(request: PageRequest) -> Response:
    # Let a node that was failed over be a member again.
    found = _find_node(request, await read_form(request.http_request))
    return await _change_document(request, lambda document: restore_member(document, found.id))


def _find_node(request: PageRequest, form: Mapping[str, str]) -> ClusterNode:
    """Return the node of the field otpNode."""
    name = form.get("otpNode")
    found = next((node for node in _get_member(request).state.document.nodes if node.otp_name == name), None)
    if found is None:
        raise UsageError("Server does not exist.")
    return found


async def _change_document(request: PageRequest, change: ChangeDocument) -> Response:
    await _get_member(request).change(change)
    return Response(status_code=200)


def _get_member(request: PageRequest) -> ClusterMember:
    member = request.node.cluster.member
    if member is None:
        raise UsageError("this node is not in a cluster, expected one with other nodes")
    return member


PAGES = (
    Page("GET", "/settings/autoFailover", _show_settings, Privilege.SETTINGS),
    Page("POST", "/settings/autoFailover", _change_settings, Privilege.SETTINGS),
    Page("POST", "/settings/autoFailover/resetCount", _reset_count, Privilege.SETTINGS),
    Page("POST", "/controller/failOver", _fail_over_node, Privilege.SETTINGS),
    Page("POST", "/controller/reAddNode", _restore_node, Privilege.SETTINGS),
)
