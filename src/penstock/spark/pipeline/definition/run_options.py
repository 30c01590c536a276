"""Keys of a pipeline's file that `penstock pipeline run` has as options. They are read without importing Arrow."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.signals.metrics_listener import LOOPBACK
from penstock.options import FILE, PORT, check_limits, nonempty, number, option

__all__ = ["Metrics", "Trigger"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """When the micro-batches of a source start."""

    trigger_seconds: float = option(
        number(0, 86400), "seconds from the begin of a micro-batch to the next", default=1.0, flag="--trigger"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The metrics for Prometheus."""

    port: int = option(PORT, "serve metrics for Prometheus on this port, at /metrics; 0: any free port")
    host: str = option(
        nonempty("an address"), "the address of the port; needs a login if other machines reach it", default=LOOPBACK
    )
    login: str | None = option(
        FILE, 'file with the login of the metrics, {"username": ..., "password": ...}', default=None
    )

    def __post_init__(self) -> None:
        check_limits(self)
