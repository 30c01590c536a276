"""Forms: the bodies of requests, and their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

from penstock.digits import read_digits
from penstock.errors import UsageError
from penstock.node.buckets.bucket_spec import MAX_REPLICAS, BucketSpec
from penstock.node.http.protocol.request_reader import MAX_BODY

MAX_FIELDS = 100
_MEGABYTE = 1024 * 1024
_LARGEST_QUOTA = 2**40  # megabytes
_LARGEST = 2**64 - 1
_LEAST_HISTORY = 2 * 1024 * 1024 * 1024  # bytes. Source: ns_server ns_bucket.hrl, HISTORY_RETENTION_BYTES_MIN


class FormErrors(Exception):
    """Invalid fields of a form.

    Attributes:
        errors: field -> a sentence with the error; `_` for the whole form.
        status: status of the response.
    """

    def __init__(self, errors: Mapping[str, str], *, status: int = 400) -> None:
        """Make the exception."""
        super().__init__("; ".join(errors.values()))
        self.errors = errors
        self.status = status


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        HTTPException: the body is no form, or too long.
        FormErrors: a field is given twice.
    """
    try:
        text = (await read_body(request)).decode("utf-8")
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except UnicodeDecodeError:
        raise HTTPException(400, "a form that is not UTF-8") from None
    except ValueError:
        raise HTTPException(400, f"a form with more than {MAX_FIELDS} fields") from None
    form = dict(pairs)
    if len(form) < len(pairs):
        raise FormErrors({name: "given twice" for name in form if sum(name == other for other, _ in pairs) > 1})
    return form


async def read_body(request: Request) -> bytes:
    """Return the body of a request. Raises HTTPException if it is too long."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:  # a chunked body; bodies with a length were refused before
            raise HTTPException(413, f"a body over {MAX_BODY} bytes", {"connection": "close"})
    return bytes(body)


# Fields


def make_number_parser(lowest: int, highest: int) -> Callable[[str], int]:
    """Return a function that parses a whole number, and raises ValueError for a number out of range."""

    def read(text: str) -> int:
        number = read_digits(text, highest, lowest)
        if number is None:
            raise ValueError(f"expected a whole number from {lowest} to {highest}, found {text[:40]!r}")
        return number

    return read


def parse_flag(text: str) -> bool:
    """Return the flag of a field. Raises ValueError for another text."""
    if text not in ("0", "1", "false", "true"):
        raise ValueError(f"expected 0, 1, false or true, found {text[:40]!r}")
    return text in ("1", "true")


def make_choice_parser(*known: str, **others: str) -> Callable[[str], str]:
    """Return a parser of a field with known texts. `others` are further texts, with the known one that each means."""

    def read(text: str) -> str:
        if text not in known and text not in others:
            raise ValueError(f"expected {', '.join((*known, *others))}, found {text[:40]!r}")
        return others.get(text, text)

    return read


def _parse_quota(text: str) -> int | None:
    return make_number_parser(0, _LARGEST_QUOTA)(text) * _MEGABYTE or None


def _parse_vbuckets(text: str) -> int:
    found = make_number_parser(1, 65536)(text)
    if found & (found - 1):
        raise ValueError(f"expected a power of two up to 65536, found {text[:40]!r}")
    return found


def _make_history_parser(least: int) -> Callable[[str], int]:
    """Return the parser of a limit of the change history: 0 for none, or at least `least`. The texts are ns_server's.

    Args:
        least: the least limit.
    """

    def read(text: str) -> int:
        lowest = 0 if text == "0" else least
        try:
            return make_number_parser(lowest, _LARGEST)(text)
        except ValueError:
            raise ValueError(f"Value must be an integer between {lowest} and {_LARGEST}, inclusive") from None

    return read


def _parse_history_default(text: str) -> bool:
    if text not in ("false", "true"):
        raise ValueError("Value must be true or false")
    return text == "true"


Field = tuple[str, Callable[[str], Any]]

_FIXED: dict[str, Field] = {
    "bucketType": ("kind", make_choice_parser("couchbase", "ephemeral", "memcached", membase="couchbase")),
    "conflictResolutionType": ("conflict_resolution", make_choice_parser("seqno", "lww")),
    "numVBuckets": ("vbuckets", _parse_vbuckets),
    "storageBackend": ("storage_backend", make_choice_parser("couchstore", "magma", undefined="couchstore")),
}
"""Field -> attribute of BucketSpec and parser, for the fields that cannot change after the creation."""

_CHANGEABLE: dict[str, Field] = {
    "ramQuota": ("quota_bytes", _parse_quota),
    "ramQuotaMB": ("quota_bytes", _parse_quota),
    "replicaNumber": ("replicas", make_number_parser(0, MAX_REPLICAS)),
    "flushEnabled": ("flush_enabled", parse_flag),
    "evictionPolicy": ("eviction", make_choice_parser("valueOnly", "fullEviction", "noEviction", "nruEviction")),
    "maxTTL": ("max_ttl", make_number_parser(0, 2**31 - 1)),
    "historyRetentionSeconds": ("retention_seconds", _make_history_parser(0)),
    "historyRetentionBytes": ("retention_bytes", _make_history_parser(_LEAST_HISTORY)),
    "historyRetentionCollectionDefault": ("history_default", _parse_history_default),
}

_CHECKED: dict[str, Callable[[str], Any]] = {
    "durabilityMinLevel": make_choice_parser("none"),
    "compressionMode": make_choice_parser("off", "passive", "active"),
    "replicaIndex": parse_flag,
}
"""Fields that clients send with every bucket. They are checked and have no effect."""


def make_spec(form: Mapping[str, str], vbuckets: int) -> BucketSpec:
    """Return the bucket that a form describes. Unknown fields are ignored: each release of the clients adds some.

    Args:
        form: the fields.
        vbuckets: number of vbuckets if the form has none.

    Raises:
        FormErrors: a field is invalid.
    """
    found = _read_fields(form, _FIXED | _CHANGEABLE)
    if "name" not in form:
        raise FormErrors({"name": "Bucket name needs to be specified"})
    try:
        spec = BucketSpec(**{"name": form["name"], "vbuckets": vbuckets, **found})
    except UsageError as error:
        raise _make_form_errors(error) from None
    _check_history_fields(spec, form)
    if spec.has_history and spec.history_default is None:
        spec = replace(spec, history_default=True)
    return spec


def _check_history_fields(spec: BucketSpec, form: Mapping[str, str]) -> None:
    """Raise FormErrors if a form sets the change history of a bucket that has none."""
    if not spec.has_history and (wrong := [name for name in form if name.startswith("historyRetention")]):
        raise FormErrors(dict.fromkeys(wrong, "History Retention can only used with Magma"))


def _make_form_errors(error: UsageError) -> FormErrors:
    return FormErrors({"evictionPolicy" if "eviction" in str(error) else "name": str(error)})


def change_spec(spec: BucketSpec, form: Mapping[str, str]) -> BucketSpec:
    """Return a bucket's definition as changed by a form.

    Raises:
        FormErrors: a field is invalid or cannot be changed.
    """
    fixed = _read_fields(form, _FIXED)
    wrong = {
        name: "cannot be changed" for name, (to, _) in _FIXED.items() if to in fixed and _is_different(spec, to, fixed)
    }
    if form.get("name", spec.name) != spec.name:
        wrong["name"] = "cannot be changed"
    if wrong:
        raise FormErrors(wrong)
    _check_history_fields(spec, form)
    try:
        return replace(spec, **_read_fields(form, _CHANGEABLE))
    except UsageError as error:
        raise _make_form_errors(error) from None


def _is_different(spec: BucketSpec, attribute: str, found: Mapping[str, Any]) -> bool:
    return bool(getattr(spec, attribute) not in (None, found[attribute]))


def _read_fields(form: Mapping[str, str], fields: Mapping[str, Field]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for name, text in form.items():
        try:
            if name in fields:
                attribute, read = fields[name]
                found[attribute] = read(text)
            elif name in _CHECKED:
                _CHECKED[name](text)
        except ValueError as error:
            wrong[name] = str(error)
    if wrong:
        raise FormErrors(wrong)
    return found
