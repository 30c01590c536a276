"""What a request brings: its body, as far as it is taken, and the fields in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

from penstock.errors import UsageError
from penstock.node.buckets.bucket_spec import MAX_REPLICAS, BucketSpec
from penstock.node.http.protocol.request_reader import MAX_BODY

__all__ = ["MAX_BODY", "FormErrors", "changed_spec", "flag", "new_spec", "number", "read_form"]

MAX_FIELDS = 100
_MEGABYTE = 1024 * 1024
_LARGEST_QUOTA = 2**40  # megabytes
_LARGEST = 2**63 - 1


class FormErrors(Exception):
    """Fields that cannot be taken, and why: one sentence each."""

    def __init__(self, errors: Mapping[str, str], *, status: int = 400) -> None:
        super().__init__("; ".join(errors.values()))
        self.errors = errors
        self.status = status


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises HTTPException for a body that is none, or too long."""
    try:
        text = (await _read_body(request)).decode("utf-8")
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except UnicodeDecodeError:
        raise HTTPException(400, "a form that is not UTF-8") from None
    except ValueError:
        raise HTTPException(400, f"a form with more than {MAX_FIELDS} fields") from None
    form = dict(pairs)
    if len(form) < len(pairs):
        raise FormErrors({name: "given twice" for name in form if sum(name == other for other, _ in pairs) > 1})
    return form


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:  # a chunked one: the connection refuses the others by their length
            raise HTTPException(413, f"a body over {MAX_BODY} bytes", {"connection": "close"})
    return bytes(body)


# Fields


def number(lowest: int, highest: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 20 and lowest <= int(text) <= highest):
            raise ValueError(f"expected a whole number from {lowest} to {highest}, found {text[:40]!r}")
        return int(text)

    return read


def flag(text: str) -> bool:
    if text not in ("0", "1", "false", "true"):
        raise ValueError(f"expected 0, 1, false or true, found {text[:40]!r}")
    return text in ("1", "true")


def _choice(*known: str, **others: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known and text not in others:
            raise ValueError(f"expected {', '.join((*known, *others))}, found {text[:40]!r}")
        return others.get(text, text)

    return read


def _quota(text: str) -> int | None:
    return number(0, _LARGEST_QUOTA)(text) * _MEGABYTE or None


def _vbuckets(text: str) -> int:
    found = number(1, 65536)(text)
    if found & (found - 1):
        raise ValueError(f"expected a power of two up to 65536, found {text[:40]!r}")
    return found


Field = tuple[str, Callable[[str], Any]]

_FIXED: dict[str, Field] = {
    "bucketType": ("kind", _choice("couchbase", "ephemeral", "memcached", membase="couchbase")),
    "conflictResolutionType": ("conflict_resolution", _choice("seqno", "lww")),
    "numVBuckets": ("vbuckets", _vbuckets),
    "storageBackend": ("storage_backend", _choice("couchstore", "magma", undefined="couchstore")),
}
"""Fields by name: the attribute of a BucketSpec, and what reads it. These stay as they were when it was made."""

_CHANGEABLE: dict[str, Field] = {
    "ramQuota": ("quota_bytes", _quota),
    "ramQuotaMB": ("quota_bytes", _quota),
    "replicaNumber": ("replicas", number(0, MAX_REPLICAS)),
    "flushEnabled": ("flush_enabled", flag),
    "evictionPolicy": ("eviction", _choice("valueOnly", "fullEviction", "noEviction", "nruEviction")),
    "maxTTL": ("max_ttl", number(0, 2**31 - 1)),
    "historyRetentionSeconds": ("retention_seconds", number(0, _LARGEST)),
    "historyRetentionBytes": ("retention_bytes", lambda text: number(0, _LARGEST)(text) or None),
}

_CHECKED: dict[str, Callable[[str], Any]] = {
    "durabilityMinLevel": _choice("none"),
    "compressionMode": _choice("off", "passive", "active"),
    "replicaIndex": flag,
    "historyRetentionCollectionDefault": flag,
}
"""What clients send with every bucket and what changes nothing here."""


def new_spec(form: Mapping[str, str], vbuckets: int) -> BucketSpec:
    """Return the bucket that a form describes; vbuckets: how many unless it says. Raises FormErrors.

    Fields that nobody knows are passed over: each release of the clients has some more.
    """
    found = _read(form, _FIXED | _CHANGEABLE)
    if "name" not in form:
        raise FormErrors({"name": "Bucket name needs to be specified"})
    try:
        return BucketSpec(**{"name": form["name"], "vbuckets": vbuckets, **found})
    except UsageError as error:
        raise _not_a_bucket(error) from None


def _not_a_bucket(error: UsageError) -> FormErrors:
    return FormErrors({"evictionPolicy" if "eviction" in str(error) else "name": str(error)})


def changed_spec(spec: BucketSpec, form: Mapping[str, str]) -> BucketSpec:
    """Return the bucket as a form changes it. Raises FormErrors, also for what cannot be changed."""
    fixed = _read(form, _FIXED)
    wrong = {name: "cannot be changed" for name, (to, _) in _FIXED.items() if to in fixed and _differs(spec, to, fixed)}
    if form.get("name", spec.name) != spec.name:
        wrong["name"] = "cannot be changed"
    if wrong:
        raise FormErrors(wrong)
    try:
        return replace(spec, **_read(form, _CHANGEABLE))
    except UsageError as error:
        raise _not_a_bucket(error) from None


def _differs(spec: BucketSpec, attribute: str, found: Mapping[str, Any]) -> bool:
    return bool(getattr(spec, attribute) not in (None, found[attribute]))


def _read(form: Mapping[str, str], fields: Mapping[str, Field]) -> dict[str, Any]:
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
