"""The client of object stores: one store for each bucket, conditional puts, and errors in one sentence.

obstore and deltalake share one Rust library. So both read the same settings: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID,
AZURE_STORAGE_ACCOUNT_NAME, GOOGLE_SERVICE_ACCOUNT and others. Without them, the role of the machine counts. That
library does not read the files of AWS's own tools; `find_store_options` does. Credentials are never part of a place, so
no plan, log, table or task has them. Each process finds them in its own surroundings.
"""

from __future__ import annotations

import configparser
import errno
import os
import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

from penstock.errors import Unreachable, UsageError
from penstock.text_files import decode_text

T = TypeVar("T")

TRIES = 6
"""Attempts of a conditional put, and of a request whose answer ends within its body. The libraries themselves repeat
only requests that the store refuses, or that get no answer."""
FIRST_PAUSE = 0.2
"""Seconds before the second attempt; each further pause is twice as long."""
ERROR_CHARACTERS = 200
"""Longest reason that an error shows."""

_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "HOME")
"""Beginnings of the environment variables that the library reads, and HOME, where AWS's files are."""
_AWS_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


class ObjectChanged(Exception):
    """Another process created or replaced the object first."""


def open_store(root: str) -> Any:
    """Return the client of a bucket. It is made again once the credentials in files or in the environment change.

    Args:
        root: scheme and bucket, such as s3://lakes.
    """
    settings = tuple(pair for pair in os.environ.items() if pair[0].startswith(_PREFIXES))
    return _make_store(root, tuple(find_store_options(root).items()), settings)


@lru_cache(16)
def _make_store(root: str, options: tuple[tuple[str, str], ...], settings: object) -> Any:
    config: Any = dict(options)
    return from_url(root, config=config)


def find_store_options(url: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the options that the stores' own environment variables do not give: AWS's credentials and config files.

    Args:
        url: a place in an object store.
        environ: the environment.

    Returns:
        Empty if the environment has credentials, or if there are no files. Then the machine's role counts.
    """
    if not url.startswith("s3") or "AWS_ACCESS_KEY_ID" in environ or "AWS_WEB_IDENTITY_TOKEN_FILE" in environ:
        return {}
    profile, home = environ.get("AWS_PROFILE", "default"), environ.get("HOME", "/")
    found = _read_profile(environ.get("AWS_SHARED_CREDENTIALS_FILE", f"{home}/.aws/credentials"), profile)
    config = environ.get("AWS_CONFIG_FILE", f"{home}/.aws/config")
    settings = _read_profile(config, profile if profile == "default" else f"profile {profile}") | found
    options = {name: settings[name] for name in _AWS_KEYS if name in settings}
    if "region" in settings and not environ.keys() & {"AWS_REGION", "AWS_DEFAULT_REGION"}:
        options["aws_region"] = settings["region"]
    if "endpoint_url" in settings and not environ.keys() & {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"}:
        options["aws_endpoint_url"] = settings["endpoint_url"]
    return options


def _read_profile(file: str, section: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        content = Path(file).expanduser().read_bytes()
    except OSError:
        return {}
    try:
        parser.read_string(decode_text(content, file, "sections with credentials", is_secret=True))
    except configparser.Error:  # its text may show a line with a secret
        raise UsageError(f"{file} cannot be read; expected sections with credentials, such as [default]") from None
    return dict(parser[section]) if parser.has_section(section) else {}


def repeat_cut_request(request: Callable[[], T]) -> T:
    """Return the result of a request, which is sent again if its answer ends within its body.

    Args:
        request: sends the request and reads the whole answer. Sent twice, it has the effect of one.
    """
    for attempt in range(TRIES - 1):
        try:
            return request()
        except Exception as error:  # the libraries have no class for it
            if not is_cut(error):
                raise
        time.sleep(FIRST_PAUSE * 2**attempt)
    return request()


def is_cut(error: Exception) -> bool:
    """Return whether an answer of an object store ended within its body. obstore and deltalake have the same text."""
    return "request or response body error" in str(error) or "error decoding response body" in str(error)


def translate_errors(place: object, request: Callable[[], T], *, repeats: bool = True) -> T:
    """Return the result of a request to an object store.

    Args:
        place: the object or prefix, for errors.
        request: the request.
        repeats: as `repeat_cut_request`; False for a request that has another effect the second time.

    Raises:
        FileNotFoundError: there is no such object.
        UsageError: the store refuses the credentials.
        Unreachable: the store does not answer, or answers with another error, in spite of retries.
    """
    try:
        return repeat_cut_request(request) if repeats else request()
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "No such object", str(place)) from None
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise UsageError(
            f"{place} is not accessible ({describe_store_error(error)});"
            " expected credentials with access in the environment"
        ) from None
    except BaseError as error:
        raise Unreachable(f"{place}: {describe_store_error(error)}") from None


def describe_store_error(error: Exception) -> str:
    """Return the reason alone: the libraries' texts have the request, colours, and a dump of their state."""
    text = re.sub(r"\x1b\[\d+m|↳", "", str(error).partition("\n\nDebug source")[0])
    if found := re.search(r"<Code>(.*?)</Code>(?:.*?<Message>(.*?)</Message>)?", text, re.DOTALL):
        return ": ".join(part for part in found.groups() if part)[:ERROR_CHARACTERS]
    return " ".join(text.split(" - ")[-1].split())[:ERROR_CHARACTERS]


def read_object(store: Any, key: str) -> tuple[bytes, str]:
    """Return content and version of an object. Raises FileNotFoundError if there is none."""
    found = obstore.get(store, key)
    return bytes(found.bytes()), str(found.meta["e_tag"])


def put_if(root: str, key: str, content: bytes, version: str | None) -> str:
    """Put an object only if it is as expected, exactly once in effect.

    An answer may be lost after the store has obeyed. Therefore a refusal, or an error, is followed by a read: if the
    object has this content, the put has happened.

    Args:
        root: scheme and bucket.
        key: the object.
        content: the content; two processes that compete must write different contents.
        version: the version that the object must have; None if it must not exist.

    Returns:
        The new version.

    Raises:
        ObjectChanged: the object has another version, or exists.
    """
    store, mode = open_store(root), _make_mode(version)
    for attempt in range(TRIES):
        is_refused = False
        try:
            return str(obstore.put(store, key, content, mode=mode, use_multipart=False)["e_tag"])
        except (AlreadyExistsError, PreconditionError):
            is_refused = True
        except (PermissionDeniedError, UnauthenticatedError, FileNotFoundError) as error:
            failure: Exception = error
            break
        except BaseError as error:
            failure = error
        try:
            found, newest = read_object(store, key)
        except FileNotFoundError:
            found, newest = None, ""
        except BaseError as error:
            failure, is_refused, found, newest = error, False, None, ""
        if found == content:
            return newest
        if is_refused:
            raise ObjectChanged(f"{root}/{key}")
        time.sleep(FIRST_PAUSE * 2**attempt)

    def fail() -> str:
        raise failure

    return translate_errors(f"{root}/{key}", fail, repeats=False)


def _make_mode(version: str | None) -> Literal["create"] | Any:
    return "create" if version is None else {"e_tag": version}
