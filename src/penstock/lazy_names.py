"""Names of a package that are loaded on their first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from penstock.extras import missing_extra

__all__ = ["lazy_names"]


def lazy_names(
    package: dict[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package.

    Args:
        package: the package's `globals()`, where a name stands once it was used.
        homes: the module of each name. A name that its module ends with is the module itself.

    A name whose module needs an extra that is not installed raises ModuleNotFoundError, which names the extra.
    """

    def get_name(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        try:
            module = import_module(home)
        except ModuleNotFoundError as error:
            missing = missing_extra(error)
            if missing is None:
                raise
            raise ModuleNotFoundError(f"{package['__name__']}.{name} needs {missing}", name=error.name) from error
        found = package[name] = module if home.endswith(f".{name}") else getattr(module, name)
        return found

    def list_names() -> list[str]:
        return sorted({*package, *package["__all__"]})

    return get_name, list_names
