"""Pages of the alternate address of a node: the address for clients behind a router.

Source of the forms and responses: Couchbase's REST API, `/node/controller/setupAlternateAddresses`.
"""

from __future__ import annotations

from dataclasses import replace

from starlette.responses import Response

from penstock.client.connect.address import is_host
from penstock.digits import read_digits
from penstock.node.auth.roles import Privilege
from penstock.node.cluster.own_map import AlternateAddress
from penstock.node.http.pages.forms import FormErrors, read_form
from penstock.node.http.pages.http_authentication import Page, PageRequest

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
    return _publish_address(request, address)


async def _remove_alternate_address(request: PageRequest) -> Response:
    return _publish_address(request, None)


def _publish_address(request: PageRequest, external: AlternateAddress | None) -> Response:
    """Give the node an alternate address, or take it away with None.

    Returns:
        An empty response.
    """
    request.node.set_place(replace(request.node.place, external=external))
    return Response(status_code=200)


def _get_field(form: dict[str, str], name: str) -> str:
    if not form.get(name):
        raise FormErrors({name: "The value must be supplied"})
    return form[name]


def _parse_port(text: str, name: str) -> int:
    port = read_digits(text, 65535, 1)
    if port is None:
        raise FormErrors({name: f"expected 1 to 65535, found {text[:40]!r}"})
    return port


_ALTERNATE_PATH = "/node/controller/setupAlternateAddresses/external"

PAGES = (
    Page("PUT", _ALTERNATE_PATH, _set_alternate_address, Privilege.SETTINGS),
    Page("DELETE", _ALTERNATE_PATH, _remove_alternate_address, Privilege.SETTINGS),
)
