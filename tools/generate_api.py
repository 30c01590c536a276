"""Write docs/api.md: the public names, with a directive for each from which mkdocstrings makes the reference."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType

from generated import publish, table

import penstock
import penstock.spark

OPENING = """\
# The public names

<!-- Made by tools/generate_api.py from the names in `__all__` and their docstrings; edit those. -->

Programs may import these names from `penstock` and from `penstock.spark`. All other names are private: they may change
or move with every release. The built site (`make docs`) shows the signature and the docstring of each name.
"""


def make_page() -> str:
    """Return the whole page."""
    parts = [OPENING]
    for package in (penstock, penstock.spark):
        parts += make_chapter(package)
    return "\n".join(parts)


def make_chapter(package: ModuleType) -> Iterator[str]:
    """Yield the parts of the chapter of a package: a table of its names, and their directives."""
    names = [name for name in package.__all__ if not name.startswith("__") and not is_repeated(package, name)]
    yield f"## {package.__name__}\n"
    yield table(
        ("name", "description"),
        ((f"[`{name}`](#{package.__name__}.{name})", describe_name(package, name)) for name in names),
    )
    for name in names:
        yield f"::: {package.__name__}.{name}\n"


def is_repeated(package: ModuleType, name: str) -> bool:
    """Return whether the chapter of `penstock` describes this name of another package."""
    return package is not penstock and name in penstock.__all__ and getattr(penstock, name) is getattr(package, name)


def describe_name(package: ModuleType, name: str) -> str:
    """Return the first line of the docstring of a name; a schema has none."""
    found = getattr(package, name)
    documented = inspect.isclass(found) or inspect.isfunction(found) or inspect.ismodule(found)
    text = inspect.getdoc(found) if documented else "The columns of a batch of changes, as an Arrow schema."
    return (text or "").partition("\n")[0].replace("|", "\\|")


if __name__ == "__main__":
    publish({"api.md": make_page()})
