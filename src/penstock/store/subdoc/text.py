"""JSON text: its validity, its levels, the places of its parts, and changes that are applied together.

The extension module reads a text in one pass for all paths. It creates no Python objects and does not hold the GIL. If
the module was not built, penstock.store.subdoc.scan does the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from penstock.errors import StatusError, make_status_error
from penstock.store.subdoc import scan
from penstock.store.subdoc.path import MAX_COMPONENTS, Path, format_path
from penstock.store.subdoc.place import MISMATCH, MISSING, PathPlace
from penstock.wire.codec import native
from penstock.wire.codec.statuses import Status
from penstock.wire.values.large_bytes import join_buffers

MAX_DEPTH = 32
"""The maximum number of levels of arrays and objects, with the outermost."""

WHITE: Final = b" \t\n\r"
_MOST_PATHS: Final = 16
"""The maximum number of paths of one pass. A command has at most as many."""

_MAX_INDEX: Final = 2**31 - 1
"""An index that no document is long enough to have."""

extension = native.extension if hasattr(native.extension, "locate") else None  # a module of an older release lacks it

_NAME_ROW = Struct(f"{1 + 2 * MAX_COMPONENTS}i")
_SPACE = re.compile(rb"[ \t\n\r]*").match


class Splice(NamedTuple):
    """A change of a text: `new` replaces the bytes from `begin` up to `end`."""

    begin: int
    end: int
    new: bytes


class JsonText:
    """A checked JSON text in which paths are found and values are changed.

    Changes that keep each other's places valid are collected. They are applied together when the whole text is read
    next.

    Args:
        document: the text.
        paths: the paths that will be found later; one pass finds them all.

    Raises:
        StatusError: with SUBDOC_DOC_NOTJSON; the document is not JSON. With SUBDOC_DOC_E2DEEP; it has too many levels.
    """

    __slots__ = ("_document", "_longer", "_paths", "_places", "_splices")

    def __init__(self, document: bytes, paths: Iterable[Path] = ()) -> None:
        self._document = document
        self._paths = tuple(dict.fromkeys(paths))[:_MOST_PATHS]
        self._splices: list[Splice] = []
        self._longer: dict[Path, PathPlace] = {}  # arrays that got longer and were not changed otherwise
        levels, places = locate(document, self._paths)
        if levels < 0:
            raise make_status_error(Status.SUBDOC_DOC_NOTJSON, f"the document of {len(document)} bytes is not JSON")
        if levels > MAX_DEPTH:
            raise make_status_error(Status.SUBDOC_DOC_E2DEEP, f"the document has more than {MAX_DEPTH} levels")
        self._places = dict(zip(self._paths, places, strict=True))

    def find(self, path: Path) -> PathPlace:
        """Return the place that a path leads to.

        Args:
            path: the path; one that was given to the constructor needs no pass of its own.

        Raises:
            StatusError: with SUBDOC_PATH_MISMATCH; the path expects an array or an object where the text has none.
        """
        place = self._places.get(path)
        if place is None:
            place = self._find_again(path)
        if place.at == MISMATCH:
            raise self._make_mismatch_error(path, place)
        return place

    def read(self) -> bytes:
        """Return the text with all changes applied. Places that were found before are no longer valid then."""
        if self._splices:
            self._document = _apply_splices(self._document, self._splices)
            self._splices = []
            self._places = {}
            self._longer = {}
        return self._document

    def get_part(self, begin: int, end: int) -> bytes:
        """Return the bytes between two positions."""
        return self._document[begin:end]

    def skip_space(self, at: int) -> int:
        """Return the position of the next byte, from `at`, that is not white space."""
        return skip_space(self._document, at)

    def skip_space_back(self, at: int) -> int:
        """Return the position of the last byte before `at` that is not white space."""
        window = 64
        while True:
            begin = max(0, at - window)
            kept = self._document[begin:at].rstrip(WHITE)
            if kept or not begin:
                return begin + len(kept) - 1
            at, window = begin, 2 * window

    def find_item(self, array: int, item: bytes) -> int:
        """Find the first element of an array that has the same text as an item, or is an array or object.

        Args:
            array: where the array begins.
            item: the text of a scalar, without white space around it.

        Returns:
            The position of the element, -1 for none.
        """
        if extension is None:
            return scan.find_item(self._document, array, item)
        found: int = extension.find_item(self._document, array, item)
        return found

    def find_to_append(self, path: Path) -> PathPlace:
        """Return the place of an array to append to. It stays valid while the array is only appended to."""
        place = self._longer.get(path)
        return self.find(path) if place is None else place

    def append(self, path: Path, place: PathPlace, new: bytes) -> None:
        """Append elements to an array.

        Args:
            path: the path of the array.
            place: its place, from `find_to_append`.
            new: the elements, with commas between them.
        """
        close = place.end - 1
        self._splices.append(Splice(close, close, b"," + new if place.size else new))
        self._places.pop(path, None)
        if self._places:
            self._places = {other: its for other, its in self._places.items() if _is_outside(its, place)}
        self._longer[path] = place if place.size else place._replace(size=1)  # only 0 or not matters now

    def apply_splice(self, splice: Splice) -> None:
        """Apply a change after which all places have to be found again."""
        self._splices.append(splice)
        self.read()

    def change_value(self, path: Path, place: PathPlace, splice: Splice) -> None:
        """Add a change that replaces a value, or that adds the missing rest of a path to an object.

        The place of another path stays valid if the change is outside its value, and does not add its missing member.

        Args:
            path: the path of the value.
            place: the place of the path.
            splice: the change.
        """
        self._splices.append(splice)
        self._longer = {}
        moved = {}
        for other, its in self._places.items():
            kept = _move_place(other, its, path, place)
            if kept is not None:
                moved[other] = kept
        self._places = moved

    def _find_again(self, path: Path) -> PathPlace:
        paths = self._paths if path in self._paths else (path,)
        _, places = locate(self.read(), paths)
        self._places = dict(zip(paths, places, strict=True))
        return self._places[path]

    def _make_mismatch_error(self, path: Path, place: PathPlace) -> StatusError:
        opening = self._document[place.container : place.container + 1]
        kind = {b"[": "an array", b"{": "an object"}.get(opening, "neither an array nor an object")
        expected = "an array" if isinstance(path[place.found], int) else "an object"
        text = f"{format_path(path[: place.found])} is {kind}, expected {expected}"
        return make_status_error(Status.SUBDOC_PATH_MISMATCH, text)


def _move_place(path: Path, place: PathPlace, changed: Path, where: PathPlace) -> PathPlace | None:
    """Return the place of a path after a value was changed or added at another path.

    Args:
        path: the path whose place is returned.
        place: its place before the change.
        changed: the path of the change.
        where: the place of the change, before it.

    Returns:
        The place, or None if it has to be found again.
    """
    if where.at >= 0:  # a value was replaced
        inside = place.at if place.at >= 0 else place.container
        is_apart = not where.at <= inside < where.end
        return place if is_apart and not place.at <= where.at < place.end else None
    if place.at >= 0:  # a member was added at the end of an object
        return None if place.at <= where.close < place.end else place
    if place.at == MISSING and place.close == where.close:
        mine, added = path[place.found], changed[where.found]
        if isinstance(mine, int) or isinstance(added, int) or mine.name == added.name:
            return None
        return place._replace(members=place.members + 1)
    return place


def _is_outside(place: PathPlace, array: PathPlace) -> bool:
    """Return whether a place, or the container of a missing member, is neither in an array nor around it."""
    begin, end = (place.at, place.end) if place.at >= 0 else (place.container, place.container + 1)
    return end <= array.at or begin >= array.end


def _apply_splices(document: bytes, splices: Sequence[Splice]) -> bytes:
    parts: list[bytes | memoryview] = []
    source, at = memoryview(document), 0
    for begin, end, new in sorted(splices, key=lambda splice: splice.begin):
        parts += (source[at:begin], new)
        at = end
    return join_buffers(*parts, source[at:])


def skip_space(document: bytes, at: int) -> int:
    """Return the position of the next byte, from `at`, that is not white space."""
    found = _SPACE(document, at)
    assert found is not None, "the pattern matches the empty text, too"
    return found.end()


def count_levels(document: bytes) -> int:
    """Return how many levels of arrays and objects a text has at most, -1 if it is not JSON."""
    return locate(document, ())[0]


def locate(document: bytes, paths: tuple[Path, ...]) -> tuple[int, Sequence[PathPlace]]:
    """Return the levels of a text, and the places of paths.

    Args:
        document: the text.
        paths: up to 16 paths.

    Returns:
        The levels as of `count_levels`; and a place for each path, none if the text is not JSON.
    """
    if extension is None:
        return scan.locate(document, paths)
    levels, places = extension.locate(document, *_make_path_table(paths))
    return levels, [PathPlace._make(place) for place in places]


@lru_cache(maxsize=1024)
def _make_path_table(paths: tuple[Path, ...]) -> tuple[bytes, bytes]:
    """Return paths in the format of the extension module.

    Returns:
        A row of i32 numbers for each path: the number of components, then two numbers for each component. They are
        the index and -1, or the offset and length of a key in the second result. Then the names of all keys.
    """
    rows, names = [], b""
    for path in paths:
        row = [len(path)]
        for component in path:
            if isinstance(component, int):
                row += (min(component, _MAX_INDEX), -1)
            else:
                name = component.name.encode()
                row += (len(names), len(name))
                names += name
        rows.append(_NAME_ROW.pack(*row, *[0] * (1 + 2 * MAX_COMPONENTS - len(row))))
    return b"".join(rows), names
