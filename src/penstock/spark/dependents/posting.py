"""Posting: sends JSON to an HTTP server, with a limited number of retries."""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

import urllib3
from urllib3.exceptions import HTTPError, LocationParseError

from penstock.client.login.secret_sources import SecretKind, SecretSource, choose_secret
from penstock.errors import Error, Unreachable, UsageError
from penstock.text_files import read_text_file, split_lines
from penstock.version import __version__

LONGEST_PAUSE = 30.0
"""Greatest number of seconds between two attempts, even if the server's Retry-After is longer."""
SHOWN_BYTES = 300
"""Bytes of a refusal's body that an error shows."""
DRAINED_BYTES = 64 << 10
"""Bytes that are read of the response to an accepted request; a longer response ends the connection."""
MOST_BYTES = 64 << 10
"""Greatest size of a file with headers."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = ("content-type", "content-length", "host", "transfer-encoding")


class BatchRefused(Error):
    """The server refused a message with a status that is not retried."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Timeouts and retries of requests.

    Attributes:
        timeout: seconds to connect, and to wait for a response.
        retries: attempts after the first.
        backoff: seconds before the first retry; each further pause is twice as long.
    """

    timeout: float = 10.0
    retries: int = 3
    backoff: float = 0.5

    def __post_init__(self) -> None:
        for name, least in (("timeout", 0.001), ("retries", 0), ("backoff", 0)):
            if (value := getattr(self, name)) < least:
                raise UsageError(f"{name} is {value}, expected a number, at least {least}")

    def compute_pause(self, attempt: int, retry_after: str | None) -> float:
        """Return the seconds before a retry.

        Args:
            attempt: the number of the retry, from 1.
            retry_after: the server's header Retry-After; a date there is ignored.

        Returns:
            At most LONGEST_PAUSE.
        """
        if retry_after and retry_after.isascii() and retry_after.isdecimal() and len(retry_after) < 10:
            return min(float(retry_after), LONGEST_PAUSE)
        return min(self.backoff * (1 << min(attempt - 1, 16)), LONGEST_PAUSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderSource:
    """The source of the headers of requests, lines of `Name: value`; without one, there are none.

    Attributes:
        headers_file: a file.
        headers_command: a program and arguments, whose output begins with one header.
        headers_from: a provider of secrets with its reference.
        headers_env: the name of an environment variable.

    Raises:
        UsageError: several are given. No message shows a value.
    """

    headers_file: str | Path | None = None
    headers_command: Sequence[str] | None = None
    headers_from: str | None = None
    headers_env: str | None = None

    def __post_init__(self) -> None:
        self._choose()

    @classmethod
    def of_declaration(cls, declared: Any) -> Self:
        """Return the source that an object with the same attributes declares."""
        return cls(**{each.name: getattr(declared, each.name) for each in fields(cls)})

    @property
    def is_given(self) -> bool:
        """Whether there is a source."""
        return self._choose() is not None

    @property
    def runs_program(self) -> bool:
        """Whether reading the headers runs a program: a command, or the code of a provider."""
        source = self._choose()
        return source is not None and source.runs_program

    def read(self) -> dict[str, str]:
        """Return values by name. Raises UsageError, which shows no value, if they cannot be read."""
        source = self._choose()
        if source is None:
            return {}
        if source.kind is SecretKind.FILE:
            text = read_text_file(str(source.place), "lines of Name: value", MOST_BYTES, is_secret=True)
            return _parse_headers(text, str(source.place))
        is_variable = source.kind is SecretKind.VARIABLE
        return _parse_headers(source.read(), f"the variable {source.place}" if is_variable else source.option)

    def _choose(self) -> SecretSource | None:
        found = choose_secret({each.name: getattr(self, each.name) for each in fields(self)})
        return found if isinstance(found, SecretSource) else None


class HttpPoster:
    """Posts messages to one URL.

    Args:
        url: the URL.
        patience: timeouts and retries.
        headers: the headers of each request. They are read at the first request, and again when the server answers
            401. They may be secret, so no message and no representation shows them.

    Attributes:
        shown_url: the URL without its query, which may have secrets.

    Raises:
        UsageError: the URL is invalid, or has a login, which belongs in a header.
    """

    def __init__(self, url: str, patience: RetryPolicy, headers: HeaderSource) -> None:
        try:
            parsed = urllib3.util.parse_url(url)
        except LocationParseError:  # its text has the URL, which may hold a login
            raise UsageError("the url cannot be read; expected one such as https://cache.example/invalidate") from None
        if parsed.auth is not None:
            raise UsageError("the url has a login in it; expected that in a header, by headers_file or headers_env")
        self.shown_url = parsed._replace(query=None, fragment=None).url
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise UsageError(f"the url is {self.shown_url!r}; expected one such as https://cache.example/invalidate")
        self._url = url
        self._patience = patience
        self._own_headers = headers
        self._headers: dict[str, str] = {}
        if not headers.runs_program:  # so that a wrong file is an error at once
            headers.read()
        # `post` retries within the user's limits, so urllib3 must not retry.
        self._pool = urllib3.PoolManager(num_pools=1, maxsize=1, retries=False)

    def post(self, message: Mapping[str, Any]) -> None:
        """Post a message, and return once the server has answered with a status 2xx.

        Connection errors and the statuses 429 and 5xx are retried, and 401 if the headers have changed.

        Args:
            message: the JSON object.

        Raises:
            Unreachable: all attempts failed.
            BatchRefused: the server answered with another status.
        """
        body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
        failure, retry_after = "", None
        self._headers = self._headers or self._make_headers()
        for attempt in range(self._patience.retries + 1):
            if attempt:
                time.sleep(self._patience.compute_pause(attempt, retry_after))
            try:
                status, retry_after, start = self._send_request(body)
            except HTTPError as error:
                failure, retry_after = _describe_error(error), None
                continue
            if 200 <= status < 300:
                return
            failure = f"status {status}: {start!r}"
            if status == HTTPStatus.UNAUTHORIZED and self._has_new_headers():
                continue
            if status != 429 and status < 500:
                raise BatchRefused(f"{self.shown_url} refused a batch with {failure}", status)
        attempts = self._patience.retries + 1
        raise Unreachable(f"{self.shown_url} accepted no batch in {attempts} attempts; the last: {failure}")

    def check_connection(self) -> None:
        """Read the headers, and open a connection to the server without a request.

        Raises:
            Unreachable: there is no connection.
        """
        self._own_headers.read()
        parsed, seconds = urllib3.util.parse_url(self._url), self._patience.timeout
        is_secure = parsed.scheme == "https"
        host = str(parsed.host).strip("[]")
        try:
            with socket.create_connection((host, parsed.port or (443 if is_secure else 80)), seconds) as connection:
                if is_secure:
                    ssl.create_default_context().wrap_socket(connection, server_hostname=host).close()
        except OSError as error:
            raise Unreachable(f"{self.shown_url} cannot be reached: {error.strerror or error}") from None

    def close(self) -> None:
        """Close the connection."""
        self._pool.clear()

    def _make_headers(self) -> dict[str, str]:
        own = self._own_headers.read()
        return {"Content-Type": "application/json", "User-Agent": f"penstock/{__version__}", **own}

    def _has_new_headers(self) -> bool:
        """Return whether the headers have changed, after reading them again: tokens expire."""
        before = self._headers
        with suppress(UsageError):  # the server's refusal is the error
            self._headers = self._make_headers()
        return self._headers != before

    def _send_request(self, body: bytes) -> tuple[int, str | None, str]:
        """Return the status, the Retry-After, and the start of a refusal's body.

        Raises:
            HTTPError: the connection failed.
        """
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
        try:  # urllib3 reuses a connection only if the response was read to its end
            start = response.read(DRAINED_BYTES if is_accepted else SHOWN_BYTES, decode_content=False)
        except HTTPError:
            if not is_accepted:
                raise
        finally:
            response.close()
        return response.status, response.headers.get("Retry-After"), start[:SHOWN_BYTES].decode(errors="replace")


def _describe_error(error: HTTPError) -> str:
    # The message of urllib3 2 starts with the representation of its connection object.
    return str(error).rpartition("): ")[2] or type(error).__name__


def _parse_headers(text: str, where: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    for number, line in enumerate(split_lines(text), 1):
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not (colon and _TOKEN.fullmatch(name) and value.strip().isprintable() and value.isascii()):
            raise UsageError(f"{where}: line {number} is not a header; expected Name: value")
        if name.lower() in _OURS:
            raise UsageError(f"{where}: line {number} sets {name}, which cannot be overridden")
        headers[name] = value.strip()
    return headers
