"""Modules of a user as source text, which travels to the processes that run them.

Workers of a cluster do not see the user's directory. And a process that has imported a module keeps its old text. So a
driver reads the text of a module, and of the modules that it imports from the same directory. A worker runs this text.
The modules never stay in `sys.modules`: two pipelines may have modules of the same name.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import NamedTuple

_IMPORTING = RLock()
"""Held while `sys.modules` lacks modules of other parts of the program."""


class ModuleSource(NamedTuple):
    """The text of a module.

    Attributes:
        name: its full name.
        path: its file, for tracebacks.
        text: its text.
    """

    name: str
    path: str
    text: bytes


def collect_sources(name: str, directory: str) -> tuple[ModuleSource, ...]:
    """Import a module from a directory. Raises the exception of an import that fails.

    Args:
        name: the full name of the module.
        directory: the directory.

    Returns:
        The texts of the module and of its own modules; nothing if the directory does not have the module.
    """
    if PathFinder.find_spec(name.partition(".")[0], [directory]) is None:
        return ()
    finder = _SourceFinder((), directory)
    with _hide_modules(finder):
        importlib.import_module(name)
    return tuple(finder.loaded.values())


def import_sources(name: str, sources: Sequence[ModuleSource]) -> ModuleType:
    """Import a module from the texts that `collect_sources` returned. Raises the exception of an import that fails.

    Args:
        name: the full name of the module.
        sources: the texts; nothing for a module that is installed.

    Returns:
        The module.
    """
    if not sources:
        return importlib.import_module(name)
    with _hide_modules(_SourceFinder(sources)):
        return importlib.import_module(name)


class _SourceFinder(MetaPathFinder):
    """Finds modules among texts, and in a directory.

    Attributes:
        loaded: the texts of the modules that were found, by name.
    """

    def __init__(self, sources: Sequence[ModuleSource], directory: str | None = None) -> None:
        self.loaded = {source.name: source for source in sources}
        self._directory = directory

    def owns(self, name: str) -> bool:
        """Return whether a module is one of the user."""
        top = name.partition(".")[0]
        return top in self.loaded or (
            self._directory is not None and PathFinder.find_spec(top, [self._directory]) is not None
        )

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module, None if it is not one of the user."""
        if self._directory is not None and fullname not in self.loaded:
            spec = PathFinder.find_spec(fullname, [self._directory] if path is None else path)
            if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
                return None
            if Path(self._directory) not in Path(spec.origin).parents:
                return None
            self.loaded[fullname] = ModuleSource(fullname, spec.origin, Path(spec.origin).read_bytes())
        source = self.loaded.get(fullname)
        if source is None:
            return None
        is_package = Path(source.path).name == "__init__.py"
        spec = importlib.util.spec_from_loader(fullname, _TextLoader(source), origin=source.path, is_package=is_package)
        if spec is not None:
            spec.has_location = True
            if is_package:
                spec.submodule_search_locations = [str(Path(source.path).parent)]
        return spec


class _TextLoader(SourceLoader):
    """Loads a module from its text."""

    def __init__(self, source: ModuleSource) -> None:
        self._source = source

    def get_filename(self, fullname: str) -> str:
        """Return the file of the module."""
        return self._source.path

    def get_data(self, path: str | bytes) -> bytes:
        """Return the text of the module. There is no compiled form, which could be outdated.

        Raises:
            OSError: the path is not that of the module.
        """
        if path != self._source.path:
            raise OSError(f"{path!r} has no data")
        return self._source.text


@contextmanager
def _hide_modules(finder: _SourceFinder) -> Iterator[None]:
    """Let modules of the user be imported, and remove them from `sys.modules` afterwards.

    Args:
        finder: finds the modules.

    Yields:
        Once, for the import.
    """
    with _IMPORTING:
        hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if finder.owns(name)}
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            for name in finder.loaded:
                sys.modules.pop(name, None)
            sys.modules.update(hidden)
