"""What DCP has and this node does not have yet: the one place from which it is refused."""

from __future__ import annotations

from typing import NoReturn

from penstock.errors import status_error
from penstock.wire.codec.statuses import Status

__all__ = ["NOT_YET", "refuse"]

NOT_YET: dict[str, tuple[Status, str]] = {
    # OPEN
    "OPEN without PRODUCER": (Status.NOT_SUPPORTED, "the node as consumer"),
    # STREAM_REQ
    "TAKEOVER": (Status.NOT_SUPPORTED, "takeover"),
    "CACHE_TRANSFER": (Status.NOT_SUPPORTED, "cache transfer"),
    # TAP_CONNECT
    "TAKEOVER_VBUCKETS": (Status.NOT_SUPPORTED, "takeover"),
    # CONTROL
    "enable_sync_writes": (Status.NOT_SUPPORTED, "sync writes"),
    "change_streams": (Status.NOT_SUPPORTED, "change history"),
    "cache_transfer": (Status.NOT_SUPPORTED, "cache transfer"),
    # other requests
    "SEQNO_ACKNOWLEDGED": (Status.EINVAL, "sync writes"),
}
"""By the name of what was asked for: the status of the refusal, and the capability that is missing.

The statuses are those with which kv_engine answers where the capability is off.
"""


def refuse(name: str) -> NoReturn:
    """Raise the StatusError of something that is not there yet. Raises KeyError for what NOT_YET does not list."""
    status, capability = NOT_YET[name]
    raise status_error(status, f"{name} needs {capability}, which this node does not have")
