"""JSON text: whether it is some, how deep it is, where its parts lie, and changes of it that are put in together.

The extension module reads a text in one pass, whatever the number of paths, without objects and without the GIL; where
it was not built, penstock.store.subdoc.scan does the same.
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

__all__ = ["MAX_DEPTH", "WHITE", "JsonText", "Splice", "count_levels", "skip_space"]

MAX_DEPTH = 32
"""How deep arrays and objects may stand in one another, the outermost counted."""

WHITE: Final = b" \t\n\r"
_MOST_PATHS: Final = 16
"""Of one pass. A command has no more."""

_MAX_INDEX: Final = 2**31 - 1
"""No document is long enough for this element."""

extension = native.extension if hasattr(native.extension, "locate") else None  # one of an older release has no such

_NAME_ROW = Struct(f"{1 + 2 * MAX_COMPONENTS}i")
_SPACE = re.compile(rb"[ \t\n\r]*").match


class Splice(NamedTuple):
    """A change of a text: `new` takes the place of what stands between begin and end."""

    begin: int
    end: int
    new: bytes


class JsonText:
    """A checked JSON text that paths are looked up in, and that changes are put into.

    paths: what will be asked for; one pass finds them all. Changes that leave each other's places valid are put in
    together, when the text is next read as a whole.
    Raises StatusError: SUBDOC_DOC_NOTJSON, SUBDOC_DOC_E2DEEP.
    """

    __slots__ = ("_document", "_longer", "_paths", "_places", "_splices")

    def __init__(self, document: bytes, paths: Iterable[Path] = ()) -> None:
        self._document = document
        self._paths = tuple(dict.fromkeys(paths))[:_MOST_PATHS]
        self._splices: list[Splice] = []
        self._longer: dict[Path, PathPlace] = {}  # arrays that have become longer, and nothing else since
        levels, places = locate(document, self._paths)
        if levels < 0:
            raise make_status_error(Status.SUBDOC_DOC_NOTJSON, f"document of {len(document)} bytes is no JSON text")
        if levels > MAX_DEPTH:
            raise make_status_error(Status.SUBDOC_DOC_E2DEEP, f"document of more than {MAX_DEPTH} levels")
        self._places = dict(zip(self._paths, places, strict=True))

    def find(self, path: Path) -> PathPlace:
        """Return where a path leads.

        Raises StatusError with SUBDOC_PATH_MISMATCH where it takes something for an array or object that is not one.
        """
        place = self._places.get(path)
        if place is None:
            place = self._find_again(path)
        if place.at == MISMATCH:
            raise self._mismatch(path, place)
        return place

    def read(self) -> bytes:
        """Return the text with its changes. Places that were found before are those of an older text then."""
        if self._splices:
            self._document = _apply_splices(self._document, self._splices)
            self._splices = []
            self._places = {}
            self._longer = {}
        return self._document

    def get_part(self, begin: int, end: int) -> bytes:
        """Return what stands between two places."""
        return self._document[begin:end]

    def skip_space(self, at: int) -> int:
        """Return where the next byte is that is not white space."""
        return skip_space(self._document, at)

    def skip_space_back(self, at: int) -> int:
        """Return where the last byte in front of a place is that is not white space."""
        window = 64
        while True:
            begin = max(0, at - window)
            kept = self._document[begin:at].rstrip(WHITE)
            if kept or not begin:
                return begin + len(kept) - 1
            at, window = begin, 2 * window

    def find_item(self, array: int, item: bytes) -> int:
        """Return where in an array the first element is that is spelled so, or is an array or object; -1 for none."""
        if extension is None:
            return scan.find_item(self._document, array, item)
        found: int = extension.find_item(self._document, array, item)
        return found

    def find_to_append(self, path: Path) -> PathPlace:
        """Return what `find` does, also of an array that has become longer and is to become longer still."""
        place = self._longer.get(path)
        return self.find(path) if place is None else place

    def append(self, path: Path, place: PathPlace, new: bytes) -> None:
        """Put elements behind those of an array at a place of `find_to_append`."""
        close = place.end - 1
        self._splices.append(Splice(close, close, b"," + new if place.size else new))
        self._places.pop(path, None)
        if self._places:
            self._places = {other: its for other, its in self._places.items() if _is_outside(its, place)}
        self._longer[path] = place if place.size else place._replace(size=1)  # how many there are matters no more

    def apply_splice(self, splice: Splice) -> None:
        """Put a change in, after which all that was found is looked for again."""
        self._splices.append(splice)
        self.read()

    def change_value(self, path: Path, place: PathPlace, splice: Splice) -> None:
        """Put a change in that replaces the value at a place, or adds the missing rest of its path to an object.

        Places that are found stay valid where the change is in none of their values and none of what they lack.
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

    def _mismatch(self, path: Path, place: PathPlace) -> StatusError:
        opening = self._document[place.container : place.container + 1]
        kind = {b"[": "an array", b"{": "an object"}.get(opening, "neither array nor object")
        wanted = "an array" if isinstance(path[place.found], int) else "an object"
        text = f"{format_path(path[: place.found])} is {kind}, expected {wanted}"
        return make_status_error(Status.SUBDOC_PATH_MISMATCH, text)


def _move_place(path: Path, place: PathPlace, changed: Path, where: PathPlace) -> PathPlace | None:
    """Return a path's place after a value was changed or added at another path's; None if that is not known."""
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
    """Tell whether a place, and what it lacks, lies neither in an array nor around it."""
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
    """Return where the next byte is that is not white space."""
    found = _SPACE(document, at)
    assert found is not None, "it matches nothing, too"
    return found.end()


def count_levels(document: bytes) -> int:
    """Return how many arrays and objects stand in one another at most, -1 if this is no JSON text."""
    return locate(document, ())[0]


def locate(document: bytes, paths: tuple[Path, ...]) -> tuple[int, Sequence[PathPlace]]:
    """Return what `count_levels` does, and where up to 16 paths lead: nothing if this is no JSON text."""
    if extension is None:
        return scan.locate(document, paths)
    levels, places = extension.locate(document, *_make_path_table(paths))
    return levels, [PathPlace._make(place) for place in places]


@lru_cache(maxsize=1024)
def _make_path_table(paths: tuple[Path, ...]) -> tuple[bytes, bytes]:
    """Return paths as the extension module takes them: a row of numbers for each, and the names of their keys."""
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
