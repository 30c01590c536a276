"""The parts of DCP that this node does not support, with the status of each refusal."""

from __future__ import annotations

from typing import NoReturn

from penstock.errors import make_status_error
from penstock.wire.codec.statuses import Status

__all__ = ["UNSUPPORTED", "refuse_unsupported"]

UNSUPPORTED: dict[str, tuple[Status, str]] = {
    # STREAM_REQ
    "CACHE_TRANSFER": (Status.NOT_SUPPORTED, "cache transfer"),
    # CONTROL
    "cache_transfer": (Status.NOT_SUPPORTED, "cache transfer"),
}
"""Name of the request -> the status of the refusal, and the missing capability.

kv_engine replies with the same statuses where the capability is off.
"""


def refuse_unsupported(name: str) -> NoReturn:
    """Raise the StatusError of an unsupported request.

    Args:
        name: the name in `UNSUPPORTED`.

    Raises:
        StatusError: always.
    """
    status, capability = UNSUPPORTED[name]
    raise make_status_error(status, f"{name} needs {capability}, which this node does not have")
