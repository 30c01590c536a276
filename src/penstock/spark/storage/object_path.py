"""Places in an object store, with those methods of `pathlib.Path` that a lake's code uses.

An object store has no directories: a place is an object, or the prefix of others, or both. Nothing has to be created
before an object is written, nothing is renamed, and an object appears whole or not at all.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import obstore

from penstock.errors import UsageError
from penstock.spark.storage.object_client import open_store, translate_errors

SCHEMES = ("s3", "abfss", "gs")
"""The schemes of object stores. s3a is read as s3."""


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """Size, time and version of an object, as far as `os.stat_result` has the same names.

    Attributes:
        st_size: bytes.
        st_mtime_ns: nanoseconds since the epoch at which the object was put.
        version: changes with each put.
    """

    st_size: int
    st_mtime_ns: int
    version: str

    @property
    def st_mtime(self) -> float:
        """The time in seconds since the epoch."""
        return self.st_mtime_ns / 1e9


def identify_content(found: os.stat_result | ObjectStat) -> tuple[int | str, int]:
    """Return a value that changes whenever a file is replaced."""
    return found.version if isinstance(found, ObjectStat) else found.st_ino, found.st_mtime_ns


@dataclass(frozen=True, slots=True, order=True)
class ObjectPath:
    """A place in an object store.

    Attributes:
        root: scheme and bucket, such as s3://lakes.
        key: the rest, without slashes at its ends; empty for the bucket itself.
    """

    root: str
    key: str = ""

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.root, f"{self.key}/{name}".strip("/"))

    def __str__(self) -> str:
        return f"{self.root}/{self.key}".rstrip("/")

    def as_uri(self) -> str:
        """Return the URL."""
        return str(self)

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its last suffix."""
        return Path(self.name).stem

    @property
    def parent(self) -> ObjectPath:
        """The place that this place lies in."""
        return ObjectPath(self.root, self.key.rpartition("/")[0])

    def exists(self) -> bool:
        """Return whether there is such an object, or an object below the place."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Return whether there is such an object."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Return whether there are objects below the place."""
        return next(self._list(1), None) is not None

    def iterdir(self) -> Iterator[ObjectPath]:
        """Yield the places directly below."""
        found: Any = translate_errors(
            self, lambda: obstore.list_with_delimiter(open_store(self.root), f"{self.key}/" if self.key else None)
        )
        for key in (*found["common_prefixes"], *(each["path"] for each in found["objects"])):
            yield ObjectPath(self.root, key.strip("/"))

    def rglob(self, pattern: str) -> Iterator[ObjectPath]:
        """Yield the objects below whose names match."""
        for found in self._list():
            place = ObjectPath(self.root, found["path"])
            if fnmatch.fnmatchcase(place.name, pattern):
                yield place

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """Yield the places below that match a pattern, part by part."""
        first, _, rest = pattern.partition("/")
        for place in self.iterdir():
            if fnmatch.fnmatchcase(place.name, first):
                yield from place.glob(rest) if rest else (place,)

    def stat(self) -> ObjectStat:
        """Return size and time of the object. Raises FileNotFoundError if there is none."""
        found = translate_errors(self, lambda: obstore.head(open_store(self.root), self.key))
        modified: datetime = found["last_modified"]
        return ObjectStat(found["size"], int(modified.timestamp() * 1e9), str(found["e_tag"]))

    def read_bytes(self) -> bytes:
        """Return the content. Raises FileNotFoundError if there is no such object."""
        return translate_errors(self, lambda: bytes(obstore.get(open_store(self.root), self.key).bytes()))

    def read_text(self) -> str:
        """Return the content as text. Raises FileNotFoundError if there is no such object."""
        return self.read_bytes().decode()

    def write_text(self, text: str) -> None:
        """Put an object, or replace it."""
        translate_errors(self, lambda: obstore.put(open_store(self.root), self.key, text.encode()))

    def unlink(self, missing_ok: bool = True) -> None:
        """Delete the object, if there is one. A store does not say whether there was one."""
        with suppress(FileNotFoundError):
            translate_errors(self, lambda: obstore.delete(open_store(self.root), self.key))

    def remove_tree(self) -> None:
        """Delete the object and all objects below the place."""
        store = open_store(self.root)
        keys = [*([self.key] if self.is_file() else ()), *(each["path"] for each in self._list())]
        for start in range(0, len(keys), 1000):
            some = keys[start : start + 1000]
            translate_errors(self, lambda some=some: obstore.delete(store, some))  # type: ignore[misc]

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Do nothing: a place begins to exist with its first object."""

    def _list(self, chunk: int = 1000) -> Iterator[Any]:
        """Yield the objects below the place, at most `chunk` a request."""
        prefix = f"{self.key}/" if self.key else None
        listing: Any = None
        last: str | None = None

        def read_chunk() -> list[Any]:
            nonlocal listing
            listing = listing or obstore.list(open_store(self.root), prefix, offset=last, chunk_size=chunk)
            unfinished, listing = listing, None  # after an error, a new listing continues behind the last object
            some: list[Any] = next(unfinished, [])
            listing = unfinished
            return some

        while some := translate_errors(self, read_chunk):
            last = some[-1]["path"]
            yield from some


LakePath: TypeAlias = Path | ObjectPath
"""A place of a lake's files."""


def is_url(text: str) -> bool:
    """Return whether a place is a URL and not a path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text) is not None


def is_remote_path(text: str) -> bool:
    """Return whether a place is a URL of anything but a local file."""
    return is_url(text) and not text.lower().startswith("file:/")


def parse_place(text: str) -> LakePath:
    """Return the place that a text names: a path, or a URL with file, s3, abfss or gs.

    Args:
        text: the text.

    Returns:
        An absolute path, or a place in an object store.

    Raises:
        UsageError: the URL is of another kind, has a login or a query, or has no bucket.
    """
    if not is_remote_path(text):
        local = re.match(r"(?i)file:(//(localhost)?(?=/))?(/.*)", text)
        return Path(unquote(local[3]) if local else text).expanduser().absolute()
    parts = urlsplit(text)
    scheme = "s3" if parts.scheme == "s3a" else parts.scheme
    if scheme not in SCHEMES:
        raise UsageError(
            f"the scheme is {parts.scheme!r}; expected a directory such as ./lake, or a URL with file, s3, abfss or gs"
        )
    if parts.password is not None or (parts.username is not None and scheme != "abfss") or parts.query:
        # The text may show a secret, so the error does not repeat it.
        raise UsageError(f"a {scheme} URL has a login or a query in it; expected credentials in the environment")
    key = parts.path.strip("/")
    if not parts.netloc or not key:
        raise UsageError(f"the place is {text!r}; expected a bucket and a prefix in it, such as s3://bucket/lake")
    if re.search(r"[\\%?#*\[\]{}\x00-\x1f]|//", key) or parts.fragment:
        raise UsageError(f"the place is {text!r}; expected a prefix of letters, digits and - _ . = / in the bucket")
    return ObjectPath(f"{scheme}://{parts.netloc}", key)
