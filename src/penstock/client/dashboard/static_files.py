"""The files of the dashboard, and the headers that keep all else out of its page."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Final, NamedTuple

PREFIX: Final = "/_penstock"
"""The path of the page. Couchbase has no path that begins like it."""

ASSETS: Final = f"{PREFIX}/assets"
"""The path of its files."""

SECURITY_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of all responses of the dashboard: scripts and styles come from its files only, and no page frames it."""

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class StaticFile(NamedTuple):
    """A file of the page.

    Attributes:
        content: its bytes.
        media_type: for the header Content-Type.
        tag: its entity tag. The response to a browser that has this one needs no body.
    """

    content: bytes
    media_type: str
    tag: str

    def make_headers(self) -> dict[str, str]:
        """Return the headers of a response with or without the content."""
        return {**SECURITY_HEADERS, "cache-control": "no-cache", "etag": self.tag}


def find_file(name: str) -> StaticFile | None:
    """Return a file by its name; None if there is no such file."""
    return _load_files().get(name)


@cache
def _load_files() -> dict[str, StaticFile]:
    """Return all files by name. They are read once: they are small, and belong to the version of the package."""
    found = {}
    for file in files(__package__).joinpath("static").iterdir():
        media_type = _TYPES.get(PurePosixPath(file.name).suffix)
        if media_type is not None:
            content = file.read_bytes()
            found[file.name] = StaticFile(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found
