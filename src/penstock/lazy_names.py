"""Public names of a package that are imported on their first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from penstock.extras import describe_missing_extra


def make_lazy_names(
    package: dict[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package.

    A name whose module needs an extra that is not installed raises ModuleNotFoundError, which names the extra.

    Args:
        package: the package's `globals()`, which keep each name after its first use.
        homes: name -> its module. A name that its module ends with is the module itself.
    """

    def get_name(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        try:
            module = import_module(home)
        except ModuleNotFoundError as error:
            missing = describe_missing_extra(error)
            if missing is None:
                raise
            raise ModuleNotFoundError(f"{package['__name__']}.{name} needs {missing}", name=error.name) from error
        # In the package's globals, the name no longer reaches __getattr__.
        found = package[name] = module if home.endswith(f".{name}") else getattr(module, name)
        return found

    def list_names() -> list[str]:
        return sorted({*package, *package["__all__"]})

    return get_name, list_names
