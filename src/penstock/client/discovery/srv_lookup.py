"""DNS SRV records: one name in a connection string stands for all nodes of a cluster.

Source: the SDKs' RFC on bootstrapping; RFC 2782. The lookup needs the extra `dns`. Without it, or without records, the
name is the name of a host.
"""

from __future__ import annotations

import logging

from penstock.client.discovery.endpoint import Endpoint

logger = logging.getLogger("penstock.client")

_LOOKUP_SECONDS = 2.0
"""Limit of a lookup: most names have no record, and a name server that is down must not delay the connection much."""

_MOST_ENDPOINTS = 64
"""Records that are used. A response of DNS may have some thousand."""


def make_record_name(host: str, *, tls: bool) -> str:
    """Return the name of the SRV records of a host."""
    return f"_couchbase{'s' * tls}._tcp.{host}"


async def find_srv_endpoints(host: str, *, tls: bool) -> tuple[Endpoint, ...]:
    """Return the endpoints in the SRV records of a name, in the order in which a client tries them.

    Args:
        host: the name.
        tls: find the ports with TLS.

    Returns:
        The endpoints; none if there is no record, no answer in time, or no library for DNS.
    """
    try:
        import dns.asyncresolver
        import dns.exception
        from dns.rdtypes.IN.SRV import SRV
    except ModuleNotFoundError:
        return ()
    name = make_record_name(host, tls=tls)
    try:
        answer = await dns.asyncresolver.resolve(name, "SRV", lifetime=_LOOKUP_SECONDS)
    except (dns.exception.DNSException, OSError) as error:
        logger.debug("no SRV records of %s (%s); %s is used as a host", name, error, host)
        return ()
    ordered = () if answer.rrset is None else answer.rrset.processing_order()
    records = [each for each in ordered if isinstance(each, SRV) and each.port and len(each.target) > 1]
    found = dict.fromkeys((each.target.to_text(omit_final_dot=True), each.port) for each in records)
    logger.debug("%s has %d SRV records", name, len(found))
    return tuple(found)[:_MOST_ENDPOINTS]
