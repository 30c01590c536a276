"""The endpoint of a node: host and port."""

from __future__ import annotations

Endpoint = tuple[str, int]
"""Host, without brackets, and port."""


def format_endpoint(host: str, port: int) -> str:
    """Return host and port as one text, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
