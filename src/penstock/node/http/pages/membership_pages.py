"""Pages of a cluster: nodes join and leave, and members exchange messages.

Source of the forms and responses of `/controller` and `/node/controller`: Couchbase's REST API for nodes.
"""

from __future__ import annotations

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.client.connect.address import is_host
from penstock.errors import AuthenticationFailed, UsageError
from penstock.node.auth.roles import Privilege
from penstock.node.cluster.topology import AlternateAddress, NodePlace
from penstock.node.http.pages.forms import FormErrors, read_body, read_form
from penstock.node.http.pages.http_authentication import Page, PageRequest, make_json_response
from penstock.node.membership.administration import change_alternate_address
from penstock.node.membership.cluster_document import ClusterNode
from penstock.node.membership.cluster_service import INVITATION_PATH, JOIN_PATH, Invitation
from penstock.node.membership.member_links import AGREEMENT_PATH
from penstock.node.membership.node_messages import PROOF_HEADER
from penstock.wire.values.peer_json import read_peer_json

__all__ = ["PAGES"]

_KNOWN_SERVICES = ("", "kv")


async def _exchange_messages(request: PageRequest) -> Response:
    # Answer a member. Its proof takes the place of a login.
    member = request.node.cluster.member
    if member is None:
        raise HTTPException(404, "this node is not in a cluster")
    proof = request.http_request.headers.get(PROOF_HEADER, "")
    try:
        text, own_proof = await member.receive(await read_body(request.http_request), proof)
    except AuthenticationFailed as error:
        raise HTTPException(403, str(error)) from None
    response = make_json_response(text)
    response.headers[PROOF_HEADER] = own_proof
    return response


async def _invite(request: PageRequest) -> Response:
    invitation = await request.node.cluster.invite(request.host)
    return make_json_response(msgspec.json.encode(invitation))


async def _accept(request: PageRequest) -> Response:
    invitation = read_peer_json(await read_body(request.http_request), Invitation, "invitation of a node")
    node = await request.node.cluster.accept(invitation, request.host)
    return make_json_response(msgspec.json.encode(node))


async def _add_node(request: PageRequest) -> Response:
    # Let another node join the cluster of this node.
    form = await read_form(request.http_request)
    address = _get_field(form, "hostname")
    _check_services(form)
    added = await request.node.cluster.add_node(address, form.get("user", ""), form.get("password", ""), request.host)
    return request.make_json_response({"otpNode": added.otp_name})


async def _join_cluster(request: PageRequest) -> Response:
    # Let this node join the cluster of another node.
    form = await read_form(request.http_request)
    _check_services(form)
    if "hostname" in form:
        address = form["hostname"]
    else:
        host, port = _get_field(form, "clusterMemberHostIp"), form.get("clusterMemberPort", "8091")
        address = NodePlace(host=host, mgmt=_parse_port(port)).address
    await request.node.cluster.join(address, form.get("user", ""), form.get("password", ""))
    return Response(status_code=200)


async def _eject_node(request: PageRequest) -> Response:
    # Remove a node that owns no vbuckets.
    name = _get_field(await read_form(request.http_request), "otpNode")
    member = request.node.cluster.member
    nodes: tuple[ClusterNode, ...] = () if member is None else member.state.document.nodes
    found = next((node for node in nodes if node.otp_name == name), None)
    if found is None:
        raise HTTPException(400, "Server does not exist.")
    try:
        await request.node.cluster.remove_node(found.id)
    except UsageError as error:  # ns_server answers this page with plain text
        raise HTTPException(400, str(error)) from None
    return Response(status_code=200)


_PORT_NAMES = {"kv": "kv", "kvSSL": "kv_tls", "mgmt": "mgmt", "mgmtSSL": "mgmt_tls"}
"""Names of services in the form of an alternate address -> their fields."""


async def _set_alternate_address(request: PageRequest) -> Response:
    form = await read_form(request.http_request)
    host = _get_field(form, "hostname")
    if not is_host(host, in_brackets=":" in host):
        raise FormErrors({"hostname": f"expected a name or an address, found {host[:40]!r}"})
    if unknown := sorted(form.keys() - {"hostname", *_PORT_NAMES}):
        raise FormErrors({name: f"expected one of {' '.join(_PORT_NAMES)}" for name in unknown})
    ports = {field: _parse_port(form[name], name) for name, field in _PORT_NAMES.items() if name in form}
    address = AlternateAddress(host=host, **ports)
    await change_alternate_address(request.node, request.node.cluster.member, address)
    return Response(status_code=200)


async def _remove_alternate_address(request: PageRequest) -> Response:
    await change_alternate_address(request.node, request.node.cluster.member, None)
    return Response(status_code=200)


def _get_field(form: dict[str, str], name: str) -> str:
    if not form.get(name):
        raise FormErrors({name: "The value must be supplied"})
    return form[name]


def _check_services(form: dict[str, str]) -> None:
    if form.get("services", "") not in _KNOWN_SERVICES:
        raise FormErrors({"services": f"expected kv, found {form['services'][:40]!r}"})


def _parse_port(text: str, name: str = "clusterMemberPort") -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= 65535):
        raise FormErrors({name: f"expected 1 to 65535, found {text[:40]!r}"})
    return int(text)


_ALTERNATE_PATH = "/node/controller/setupAlternateAddresses/external"

PAGES = (
    Page("POST", AGREEMENT_PATH, _exchange_messages, is_open=True),
    Page("POST", INVITATION_PATH, _invite, Privilege.SETTINGS),
    Page("POST", JOIN_PATH, _accept, Privilege.SETTINGS),
    Page("POST", "/controller/addNode", _add_node, Privilege.SETTINGS),
    Page("POST", "/node/controller/doJoinCluster", _join_cluster, Privilege.SETTINGS),
    Page("PUT", _ALTERNATE_PATH, _set_alternate_address, Privilege.SETTINGS),
    Page("DELETE", _ALTERNATE_PATH, _remove_alternate_address, Privilege.SETTINGS),
    Page("POST", "/controller/ejectNode", _eject_node, Privilege.SETTINGS),
)
