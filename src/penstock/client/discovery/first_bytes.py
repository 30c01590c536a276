"""The protocol of a peer that is no server of Couchbase, by its first bytes. Pure."""

from __future__ import annotations

EXPECTED_PORTS = "expected a data port of Couchbase (11210, with TLS 11207)"
"""The end of each message about a port of another program."""

_PROTOCOLS = (
    (b"HTTP/", "HTTP: use bootstrap=http for a management port"),
    (b"SSH-", "SSH"),
    (b"\x15\x03", "TLS: use couchbases://"),
    (b"\x16\x03", "TLS: use couchbases://"),
    (b"ERROR", "the text protocol of memcached"),
)
"""First bytes, and the name of their protocol. A TLS server answers plain bytes with an alert (0x15)."""

_SHOWN_BYTES = 16


def describe_first_bytes(peer: str, head: bytes) -> str:
    """Return the sentence about a peer that speaks another protocol.

    Args:
        peer: host and port of the peer.
        head: its first bytes.
    """
    names = [name for start, name in _PROTOCOLS if head.startswith(start)]
    spoken = names[0] if names else f"another protocol (its first bytes are {head[:_SHOWN_BYTES]!r})"
    return f"{peer} speaks {spoken}; {EXPECTED_PORTS}"
