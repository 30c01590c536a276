"""SET_PARAM: parameters of a bucket that an administrator sets while the node runs.

A parameter is in effect until the node stops, as in kv_engine. Names are those of kv_engine's configuration.json.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from penstock.errors import InvalidArguments, KeyNotFound, NotSupported
from penstock.names import escape_text
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.session.replies import encode_reply
from penstock.node.session.session import Session
from penstock.store.definition.bucket_settings import MAX_TTL
from penstock.store.history.hybrid_clock import LAST_SEEN
from penstock.wire.codec.constants import ParamType
from penstock.wire.messages.observe import SetParam

logger = logging.getLogger("penstock.node")

_FLUSH = frozenset((ParamType.FLUSH, ParamType.CONFIG))
_CONFIG = frozenset((ParamType.CONFIG,))
_VBUCKET = frozenset((ParamType.VBUCKET,))
_LONGEST_NUMBER = 20  # digits of a u64
_MAX_SECONDS = 2**31 - 1
_FLAGS = {"true": 1, "false": 0}

IGNORED_PREFIXES = ("access_scanner_", "alog_", "bfilter_", "defragmenter_", "item_compressor_")
"""Prefixes of parameters that are accepted and change nothing: they tune tasks that this node does not run."""


class Parameter(NamedTuple):
    """A parameter that has an effect.

    Attributes:
        types: the types under which kv_engine accepts the parameter.
        apply: sets the parameter of a bucket; its arguments are the bucket, the vbucket field of the request, the
            value.
        lowest: the lowest value.
        highest: the highest value; 1: the value is `true` or `false`.
        effect: the parameter's meaning, for the documentation.
    """

    types: frozenset[ParamType]
    apply: Callable[[ServedBucket, int, int], None]
    lowest: int
    highest: int
    effect: str


def _make_setter(name: str) -> Callable[[ServedBucket, int, int], None]:
    """Return a function that sets one field of the store's Settings."""

    def apply(bucket: ServedBucket, _: int, value: int) -> None:
        change: dict[str, Any] = {name: value}
        bucket.store.set_settings(replace(bucket.store.settings, **change))

    return apply


def _set_pager_interval(bucket: ServedBucket, _: int, seconds: int) -> None:
    bucket.maintenance.set_pager(seconds=float(seconds))


def _enable_pager(bucket: ServedBucket, _: int, enabled: int) -> None:
    bucket.maintenance.set_pager(enabled=bool(enabled))


def _set_persistence_timeout(bucket: ServedBucket, _: int, seconds: int) -> None:
    if bucket.flusher is None:
        raise NotSupported(f"bucket {bucket.store.name} is in memory: nothing waits for persistence")
    bucket.flusher.waits.timeout = float(seconds)


def _set_max_cas(bucket: ServedBucket, number: int, cas: int) -> None:
    bucket.store.find(number).history.set_max_cas(cas)


_MAX_SIZE = Parameter(_FLUSH, _make_setter("memory_bytes"), 1, 2**63 - 1, "memory quota of the bucket, bytes")

PARAMETERS: dict[str, Parameter] = {
    "cache_size": _MAX_SIZE._replace(effect="the same as `max_size`"),
    "exp_pager_enabled": Parameter(_FLUSH, _enable_pager, 0, 1, "whether the expiry pager runs"),
    "exp_pager_stime": Parameter(
        _FLUSH, _set_pager_interval, 1, _MAX_SECONDS, "seconds between two runs of the expiry pager"
    ),
    "history_retention_bytes": Parameter(
        _CONFIG, _make_setter("retention_bytes"), 0, 2**63 - 1, "bytes of history that compaction keeps"
    ),
    "history_retention_seconds": Parameter(
        _CONFIG, _make_setter("retention_seconds"), 0, _MAX_SECONDS, "seconds of history that compaction keeps"
    ),
    "max_cas": Parameter(_VBUCKET, _set_max_cas, 0, LAST_SEEN, "highest cas of one vbucket; it only goes up"),
    "max_size": _MAX_SIZE,
    "max_ttl": Parameter(_FLUSH, _make_setter("max_ttl"), 0, MAX_TTL, "longest time to live of documents, seconds"),
    "persistent_metadata_purge_age": Parameter(
        _FLUSH, _make_setter("purge_age"), 0, _MAX_SECONDS, "seconds that compaction keeps tombstones"
    ),
    "seqno_persistence_timeout": Parameter(
        _FLUSH, _set_persistence_timeout, 0, _MAX_SECONDS, "seconds that a request waits for persistence"
    ),
}
"""The parameters by name."""


def set_parameter(session: Session, request: SetParam) -> bytes:
    """Set a parameter of the selected bucket.

    An unknown checkpoint parameter and every replication parameter is KEY_ENOENT; other unknown ones are EINVAL.
    Source: kv_engine ep_engine.cc, setParameterInner.

    Returns:
        The reply.
    """
    bucket, kind = session.require_bucket(), _parse_type(request)
    name, text = request.key.decode("utf-8", "replace"), request.value.decode("utf-8", "replace")
    known = PARAMETERS.get(name)
    if known is not None and kind in known.types:
        known.apply(bucket, request.vbucket, _parse_value(known, name, text))
        logger.info("bucket %s: %s set to %s", bucket.store.name, name, escape_text(text))
    elif kind not in _FLUSH or not name.startswith(IGNORED_PREFIXES):
        error = KeyNotFound if kind in (ParamType.CHECKPOINT, ParamType.REPLICATION) else InvalidArguments
        raise error(f"unknown {kind.name.lower()} parameter {name!r}")
    return encode_reply(request)


def _parse_type(request: SetParam) -> ParamType:
    """Return the type of the parameter. Raises InvalidArguments for an unknown number."""
    try:
        return ParamType(request.type)
    except ValueError:
        expected = f"{min(ParamType):d} to {max(ParamType):d}"
        raise InvalidArguments(f"parameter type {request.type}, expected {expected}") from None


def _parse_value(parameter: Parameter, name: str, text: str) -> int:
    """Return the number of a value. Raises InvalidArguments if the value is no number or out of range."""
    is_flag = parameter.highest == 1
    number = _FLAGS.get(text) if is_flag else None
    if not is_flag and text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER:
        number = int(text)
    if number is None or not parameter.lowest <= number <= parameter.highest:
        expected = "true or false" if is_flag else f"a number from {parameter.lowest} to {parameter.highest}"
        raise InvalidArguments(f"{name} {text[:_LONGEST_NUMBER]!r}: expected {expected}")
    return number
