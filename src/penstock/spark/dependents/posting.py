"""JSON to an HTTP server: tried again for as long as that is promised, and no longer."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError, LocationParseError

from penstock.errors import Error, Unreachable, UsageError
from penstock.version import __version__

LONGEST_PAUSE = 30.0
"""Seconds between two tries at most, whatever the server asks for."""
SHOWN_BYTES = 300
"""How much of a refusal is shown."""
DRAINED_BYTES = 64 << 10
"""How much is read of the answer of one who has accepted; a longer one costs the connection."""
MOST_BYTES = 64 << 10
"""Of a file with headers."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = ("content-type", "content-length", "host", "transfer-encoding")


@dataclass(frozen=True, slots=True)
class Patience:
    """timeout: seconds to connect, and to wait for an answer. retries: tries after the first. backoff: seconds before
    the first retry; each pause is twice the one before."""

    timeout: float = 10.0
    retries: int = 3
    backoff: float = 0.5

    def __post_init__(self) -> None:
        for name, least in (("timeout", 0.001), ("retries", 0), ("backoff", 0)):
            if (value := getattr(self, name)) < least:
                raise UsageError(f"{name} is {value}, expected a number, at least {least}")

    def pause(self, attempt: int, asked: str | None) -> float:
        """Return the seconds before a retry. attempt: from 1. asked: the Retry-After, where dates are passed over."""
        if asked and asked.isascii() and asked.isdecimal() and len(asked) < 10:
            return min(float(asked), LONGEST_PAUSE)
        return min(self.backoff * (1 << min(attempt - 1, 16)), LONGEST_PAUSE)


class Poster:
    """Posts to one URL. headers: sent with each request; they are in no message, nor in this object's text. shown: the
    URL without its query, in which secrets may be.

    Raises UsageError for a URL that is none, or has a login in it: that belongs into a header.
    """

    def __init__(self, url: str, patience: Patience, headers: Mapping[str, str]) -> None:
        try:
            parsed = urllib3.util.parse_url(url)
        except LocationParseError:
            raise UsageError("the url cannot be read; expected one such as https://cache.example/invalidate") from None
        if parsed.auth is not None:
            raise UsageError("the url has a login in it; expected that in a header, by headers_file or headers_env")
        self.shown = parsed._replace(query=None, fragment=None).url
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise UsageError(f"the url is {self.shown!r}; expected one such as https://cache.example/invalidate")
        self._url = url
        self._patience = patience
        self._headers = {"Content-Type": "application/json", "User-Agent": f"penstock/{__version__}", **headers}
        self._pool = urllib3.PoolManager(num_pools=1, maxsize=1, retries=False)

    def post(self, message: Mapping[str, Any]) -> None:
        """Return once the server has answered 2xx.

        Connection errors, 429 and 5xx are tried again. Raises Unreachable when all tries have failed, Error for any
        other answer.
        """
        body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
        failure, asked = "", None
        for attempt in range(self._patience.retries + 1):
            if attempt:
                time.sleep(self._patience.pause(attempt, asked))
            try:
                status, asked, start = self._once(body)
            except HTTPError as error:
                failure, asked = _reason(error), None
                continue
            if 200 <= status < 300:
                return
            failure = f"status {status}: {start!r}"
            if status != 429 and status < 500:
                raise Error(f"{self.shown} refused a batch with {failure}")
        raise Unreachable(f"{self.shown} took no batch in {self._patience.retries + 1} tries; the last: {failure}")

    def close(self) -> None:
        self._pool.clear()

    def _once(self, body: bytes) -> tuple[int, str | None, str]:
        """Return the status, the Retry-After, and the beginning of a refusal's body."""
        response = self._pool.request(
            "POST",
            self._url,
            body=body,
            headers=self._headers,
            timeout=urllib3.Timeout(connect=self._patience.timeout, read=self._patience.timeout),
            redirect=False,
            preload_content=False,
        )
        is_accepted, start = 200 <= response.status < 300, b""
        try:  # a connection whose answer is read to its end is kept
            start = response.read(DRAINED_BYTES if is_accepted else SHOWN_BYTES, decode_content=False)
        except HTTPError:
            if not is_accepted:
                raise
        finally:
            response.close()
        return response.status, response.headers.get("Retry-After"), start[:SHOWN_BYTES].decode(errors="replace")


def _reason(error: HTTPError) -> str:
    # urllib3 puts the connection object before its words.
    return str(error).rpartition("): ")[2] or type(error).__name__


def secret_headers(file: str | Path | None, variable: str | None) -> dict[str, str]:
    """Return the headers that a file or a variable of the environment holds, lines of `Name: value`.

    Raises UsageError, in which no value is quoted.
    """
    if file is not None and variable is not None:
        raise UsageError("headers_file and headers_env, expected one of them")
    if file is not None:
        return _headers(_text(Path(file)), str(file))
    if variable is not None:
        if variable not in os.environ:
            raise UsageError(f"the environment has no {variable}; expected headers in it, lines of Name: value")
        return _headers(os.environ[variable], f"the variable {variable}")
    return {}


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    if len(text) > MOST_BYTES or not text.isascii():
        raise UsageError(f"{path}: expected at most {MOST_BYTES} bytes of ASCII, lines of Name: value")
    return text.decode()


def _headers(text: str, where: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not (colon and _TOKEN.fullmatch(name) and value.strip().isprintable() and value.isascii()):
            raise UsageError(f"{where}: line {number} is no header; expected Name: value")
        if name.lower() in _OURS:
            raise UsageError(f"{where}: line {number} is {name}, which is not for others to say")
        headers[name] = value.strip()
    return headers
