"""A transform: the function of a user that changes the values of a source's documents before they are stored."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from penstock.errors import UsageError
from penstock.spark.pipeline.transform.module_sources import ModuleSource, collect_sources, import_sources

TransformFunction: TypeAlias = Callable[[Any], Any]

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def check_transform_name(text: str) -> None:
    """Check the form of a transform's name.

    Raises:
        UsageError: it is not MODULE:FUNCTION.
    """
    if not _NAME.fullmatch(text):
        raise UsageError(f"transform is {text!r}, expected MODULE:FUNCTION such as beers:clean")


def _describe_exception(error: BaseException, own: Iterable[str] = ()) -> str:
    """Return the last line of an exception's traceback, with the last place in the user's modules.

    Args:
        error: the exception.
        own: beginnings of the paths of the user's modules.
    """
    last = " ".join(traceback.format_exception_only(error)[-1].split())
    if isinstance(error, SyntaxError):
        return f"{last} ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    place = [frame for frame in frames if frame.filename.startswith(tuple(own))] or frames
    return f"{last} ({place[-1].filename}, line {place[-1].lineno})" if place else last


@dataclass(frozen=True, slots=True)
class Transform:
    """A user's function, in a form that Spark sends to workers.

    Attributes:
        name: MODULE:FUNCTION.
        sources: the texts of its modules; nothing if the module is installed.
    """

    name: str
    sources: tuple[ModuleSource, ...] = ()

    @classmethod
    def find(cls, name: str, directory: str) -> Transform:
        """Return the transform of a name.

        Args:
            name: MODULE:FUNCTION.
            directory: the directory with the module; without it there, the module must be installed.

        Returns:
            The transform, whose function exists.

        Raises:
            UsageError: the module or the function does not exist, or the module cannot be imported.
        """
        module = name.partition(":")[0]
        directory = str(Path(directory).absolute())
        try:
            found = cls(name, collect_sources(module, directory))
            found.load()
        except ModuleNotFoundError as error:
            if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
                raise UsageError(
                    f"transform is {name!r}, and there is no module {error.name};"
                    f" expected {error.name.replace('.', '/')}.py in {directory}, or an installed module"
                ) from None
            reason = _describe_exception(error, [directory])
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - the module is the user's
            reason = _describe_exception(error, [directory])
        else:
            return found
        raise UsageError(f"transform is {name!r}, whose import failed: {reason}")

    def describe_exception(self, error: Exception) -> str:
        """Return the last line of the traceback of an exception that the function raised, with its place."""
        return _describe_exception(error, [source.path for source in self.sources])

    def load(self) -> TransformFunction:
        """Return the function, which each process imports once. Raises UsageError if there is no such function."""
        return _load_function(self)


@lru_cache(maxsize=16)
def _load_function(transform: Transform) -> TransformFunction:
    module, _, path = transform.name.partition(":")
    found: Any = import_sources(module, transform.sources)
    where = found.__file__ if getattr(found, "__file__", None) else module
    for part in path.split("."):
        if not hasattr(found, part):
            raise UsageError(f"transform is {transform.name!r}, and {where} has no function {path}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"transform is {transform.name!r}, and {path} is {type(found).__name__}, expected a function")
    function: TransformFunction = found
    return function
