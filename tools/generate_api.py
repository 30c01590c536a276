"""Write docs/api.md from the docstrings of the public names; with --check only say whether it would change."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from generated import publish

import penstock
import penstock.spark

TARGET = Path(__file__).parent.parent / "docs" / "api.md"

OPENING = """\
# The public names

<!-- Made by tools/generate_api.py from the docstrings of the names in `__all__`; edit those. -->

What programs may import from `penstock` and from `penstock.spark`. All else is private, and may change or move with
every release. The pages of this folder say how it is used.
"""
SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$", re.MULTILINE)
QUOTED = re.compile(r"(?<=: )'([^']*)'|(?<=-> )'([^']*)'")
ENUM_MEMBER = re.compile(r"<(\w+\.\w+): [^>]*>")


def page() -> str:
    parts = [OPENING]
    for package in (penstock, penstock.spark):
        parts += chapter(package)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def chapter(package: ModuleType) -> Iterator[str]:
    """Yield the parts of a package's chapter: itself, and its public names."""
    yield f"## {package.__name__}"
    yield prose(package)
    for name in package.__all__:
        if not name.startswith("__"):
            yield from entry(f"{package.__name__}.{name}", getattr(package, name), package)


def entry(title: str, found: Any, package: ModuleType) -> Iterator[str]:
    """Yield the parts of a name. What another chapter says is not said again."""
    yield f"### {title}"
    name = title.rpartition(".")[2]
    if package is not penstock and getattr(penstock, name, None) is found and name in penstock.__all__:
        yield f"The same as [penstock.{name}](#penstock{name.lower()})."
    elif inspect.isclass(found):
        yield from class_parts(name, found)
    elif inspect.ismodule(found):
        yield prose(found)
        yield from module_parts(found)
    elif inspect.isfunction(found):
        yield code(f"{name}{signature(found)}")
        yield prose(found)
    else:
        yield code("\n".join(f"{field.name}: {field.type}" for field in found))


def class_parts(name: str, cls: type[Any]) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    heading = f"class {name}({bases})" if bases else f"class {name}"
    yield code("\n".join([heading, *(f"    {field}" for field in fields(cls))]))
    yield prose(cls)
    lines = []
    for member, kind, declared in members(cls):
        parameters = signature(declared) if kind != "property" else ""
        lines.append(f"- `{member}{parameters}`" + (f" ({kind})" if kind else "") + first_line(declared))
    if lines:
        yield "\n".join(lines)


def fields(cls: type[Any]) -> Iterator[str]:
    """Yield the fields of a dataclass or named tuple."""
    if dataclasses.is_dataclass(cls) or hasattr(cls, "_fields"):
        for field, kind in cls.__annotations__.items():
            if not field.startswith("_"):
                yield f"{field}: {getattr(kind, '__forward_arg__', kind)}"


def members(cls: type[Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield (name, kind, function) of the public methods and properties of a class, inherited ones of ours included."""
    if issubclass(cls, enum.Enum):
        return
    seen = set()
    for base in cls.__mro__:
        for member, found in vars(base).items():
            if member.startswith("_") or member in seen or not base.__module__.startswith("penstock"):
                continue
            seen.add(member)
            if isinstance(found, classmethod | staticmethod):
                yield member, "class method" if isinstance(found, classmethod) else "static method", found.__func__
            elif isinstance(found, property):
                yield member, "property", found.fget
            elif inspect.isfunction(found):
                yield member, "coroutine" if inspect.iscoroutinefunction(found) else "", found


def module_parts(module: ModuleType) -> Iterator[str]:
    """Yield the functions of a public module."""
    found = [(name, getattr(module, name)) for name in getattr(module, "__all__", ())]
    lines = [f"- `{name}{signature(each)}`{first_line(each)}" for name, each in found if inspect.isfunction(each)]
    if lines:
        yield "\n".join(lines)


def signature(found: Any) -> str:
    """Return a function's parameters and what it returns, without the quotes of annotations that are text."""
    whole = inspect.signature(found)
    shown = whole.replace(parameters=[each.replace(default=default_of(each)) for each in whole.parameters.values()])
    text = QUOTED.sub(lambda quoted: quoted[1] or quoted[2], str(shown))
    return ENUM_MEMBER.sub(r"\1", text).replace("(self, ", "(").replace("(self)", "()").replace("(cls, ", "(")


class Hidden:
    """A default that is not told: an object, whose text may differ from run to run."""

    def __repr__(self) -> str:
        return "..."


def default_of(parameter: inspect.Parameter) -> Any:
    plain = (type(None), bool, int, float, str, bytes, tuple, enum.Enum)
    default = parameter.default
    return default if default is parameter.empty or isinstance(default, plain) else Hidden()


def first_line(found: Any) -> str:
    text = (inspect.getdoc(found) or "").split("\n\n", maxsplit=1)[0].replace("\n", " ")
    return f": {text}" if text else ""


def prose(found: Any) -> str:
    """Return a docstring; its sections (Args, Raises) are lists."""
    lines = []
    for block in (inspect.getdoc(found) or "").split("\n\n"):
        title, _, rest = block.partition("\n")
        if SECTION.match(title):
            lines.append(f"{title}\n\n{items(rest)}")
        elif block.startswith("    "):
            lines.append(code(inspect.cleandoc(block) if block.count("\n") == 0 else block))
        else:
            lines.append(block)
    return "\n\n".join(lines)


def items(text: str) -> str:
    """Return the lines of a section as a list: `name: meaning`, continued on deeper lines."""
    found: list[str] = []
    for line in inspect.cleandoc(text).splitlines():
        if line.startswith(" ") and found:
            found[-1] += f" {line.strip()}"
        else:
            found.append(f"- {line}")
    return "\n".join(found)


def code(text: str) -> str:
    return f"```text\n{text}\n```"


if __name__ == "__main__":
    sys.exit(publish(TARGET, page()))
