"""Meanings of statuses, for clients that do not know them all: the answer to GET_ERROR_MAP.

Source: kv_engine docs/ErrorMap.md: a JSON object with an entry for each status, whose attributes define a client's
reaction. Version 2 added the attributes `rate-limit` and `system-constraint`.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Final

from penstock.wire.codec.statuses import Status

LATEST_VERSION: Final = 2
_REVISION: Final = 2
"""Raised whenever an entry changes."""

_OF_VERSION_2: Final = frozenset(("rate-limit", "system-constraint"))

ATTRIBUTES: Final = _OF_VERSION_2 | frozenset(
    (
        *("success", "item-only", "item-deleted", "item-locked", "invalid-input", "fetch-config", "support", "temp"),
        *("conn-state-invalidated", "auth", "special-handling", "internal", "subdoc", "dcp"),
        *("retry-now", "retry-later", "no-retry"),
    )
)
"""All attributes that entries may have."""

MEANINGS: Final[dict[Status, tuple[str, str]]] = {
    Status.SUCCESS: ("Done", "success"),
    Status.KEY_ENOENT: ("There is no such document", "item-only"),
    Status.KEY_EEXISTS: ("The document exists already, or its cas is different", "item-only"),
    Status.E2BIG: ("The value is too long", "item-only invalid-input"),
    Status.EINVAL: ("The request is not well formed", "internal invalid-input"),
    Status.NOT_STORED: ("There is no document to append to", "item-only"),
    Status.DELTA_BADVAL: ("The document is not a number", "item-only invalid-input"),
    Status.NOT_MY_VBUCKET: ("Another node serves this vbucket", "fetch-config invalid-input"),
    Status.NO_BUCKET: ("No bucket is selected on this connection", "conn-state-invalidated"),
    Status.LOCKED: ("The document is locked", "item-locked item-only retry-now"),
    Status.DCP_STREAM_NOT_FOUND: ("There is no such stream on this connection", "dcp item-only"),
    Status.OPAQUE_NO_MATCH: ("The stream has another opaque", "dcp item-only"),
    Status.WOULD_THROTTLE: ("The bucket has reached its limit of throughput", "temp retry-later rate-limit"),
    Status.CONFIG_ONLY: ("The bucket has its configuration here and no documents", "fetch-config"),
    Status.NOT_LOCKED: ("The document is not locked", "item-only"),
    Status.CAS_VALUE_INVALID: ("No document can have this cas", "item-only invalid-input"),
    Status.AUTH_STALE: ("The login has run out: log in again", "conn-state-invalidated auth"),
    Status.AUTH_ERROR: ("Wrong user or password", "conn-state-invalidated auth"),
    Status.AUTH_CONTINUE: ("The login goes on with another step", "special-handling auth"),
    Status.ERANGE: ("A number is out of its range", "invalid-input"),
    Status.ROLLBACK: ("The stream's consumer must go back to an earlier seqno", "special-handling dcp"),
    Status.EACCESS: ("The user does not have the privilege for this", "support auth"),
    Status.NOT_INITIALIZED: ("The node is not ready yet", "conn-state-invalidated retry-later"),
    Status.ENCRYPTION_KEY_NOT_AVAILABLE: ("An encryption key of the data is not available", "internal"),
    Status.CHECKSUM_MISMATCH: ("The data are not as they were written", "internal"),
    Status.EXPIRY_OVERFLOW: ("The expiry is too late for a bucket to store", "invalid-input"),
    Status.LOCK_EXPIRY_OVERFLOW: ("The lock would last longer than locks may", "invalid-input"),
    Status.RATE_LIMITED_NETWORK_INGRESS: ("The user has sent as much as it may for now", "temp retry-later rate-limit"),
    Status.RATE_LIMITED_NETWORK_EGRESS: (
        "The user was sent as much as it may be for now",
        "temp retry-later rate-limit",
    ),
    Status.RATE_LIMITED_MAX_CONNECTIONS: ("The user has as many connections as it may", "temp retry-later rate-limit"),
    Status.RATE_LIMITED_MAX_COMMANDS: ("The user has asked as often as it may for now", "temp retry-later rate-limit"),
    Status.BUCKET_SIZE_LIMIT_EXCEEDED: ("The bucket is as large as it may be", "no-retry system-constraint"),
    Status.BUCKET_RESIDENT_RATIO_TOO_LOW: ("Too little of the bucket fits into memory", "temp system-constraint"),
    Status.BUCKET_DATA_SIZE_TOO_BIG: ("A node has as many data of the bucket as it may", "temp system-constraint"),
    Status.BUCKET_DISK_SPACE_TOO_LOW: ("The disk is nearly full", "temp system-constraint"),
    Status.BUCKET_PAUSED: ("The bucket is paused", "temp retry-later"),
    Status.CANCELLED: ("The request was cancelled", "temp"),
    Status.UNKNOWN_FRAME_INFO: ("An element of the framing extras is not known", "support"),
    Status.UNKNOWN_COMMAND: ("There is no such command", "support"),
    Status.ENOMEM: ("There is not enough memory", "temp retry-later"),
    Status.NOT_SUPPORTED: ("This is not supported here", "support"),
    Status.EINTERNAL: ("The node has failed", "internal special-handling"),
    Status.EBUSY: ("The node has too much to do", "temp retry-later"),
    Status.ETMPFAIL: ("The node cannot serve this now, but may later", "temp retry-later"),
    Status.XATTR_EINVAL: ("The extended attributes are not well formed", "item-only invalid-input"),
    Status.UNKNOWN_COLLECTION: ("There is no such collection", "item-only"),
    Status.CANNOT_APPLY_COLLECTIONS_MANIFEST: ("The manifest cannot follow the one that is there", "invalid-input"),
    Status.UNKNOWN_SCOPE: ("There is no such scope", "item-only"),
    Status.DCP_STREAMID_INVALID: ("The stream id is missing, not wanted, or out of its range", "dcp invalid-input"),
    Status.DURABILITY_INVALID_LEVEL: ("There is no such level of durability", "item-only invalid-input"),
    Status.DURABILITY_IMPOSSIBLE: ("There are too few nodes for this durability", "item-only temp"),
    Status.SYNC_WRITE_IN_PROGRESS: ("A durable write of the document is under way", "item-only retry-later"),
    Status.SYNC_WRITE_AMBIGUOUS: ("Whether the durable write was done is not known", "item-only special-handling"),
    Status.SYNC_WRITE_RECOMMIT_IN_PROGRESS: ("A durable write of the document is done again", "item-only retry-later"),
    Status.RANGE_SCAN_CANCELLED: ("The scan was cancelled", "temp"),
    Status.RANGE_SCAN_MORE: ("The scan goes on", "special-handling"),
    Status.RANGE_SCAN_COMPLETE: ("The scan is at its end", "success"),
    Status.VBUUID_NOT_EQUAL: ("The vbucket has a different history", "item-only"),
    Status.SUBDOC_PATH_ENOENT: ("The path does not exist", "subdoc item-only"),
    Status.SUBDOC_PATH_MISMATCH: ("The path does not match the document's structure", "subdoc item-only"),
    Status.SUBDOC_PATH_EINVAL: ("The path is not well formed", "subdoc invalid-input"),
    Status.SUBDOC_PATH_E2BIG: ("The path is too long or too deep", "subdoc invalid-input"),
    Status.SUBDOC_DOC_E2DEEP: ("The document is too deep", "subdoc item-only"),
    Status.SUBDOC_VALUE_CANTINSERT: ("The value cannot stand there", "subdoc invalid-input"),
    Status.SUBDOC_DOC_NOTJSON: ("The document is not JSON", "subdoc item-only"),
    Status.SUBDOC_NUM_ERANGE: ("The number there is out of its range", "subdoc item-only"),
    Status.SUBDOC_DELTA_EINVAL: ("The delta is 0, not a number, or too large", "subdoc invalid-input"),
    Status.SUBDOC_PATH_EEXISTS: ("The path exists already", "subdoc item-only"),
    Status.SUBDOC_VALUE_ETOODEEP: ("The value would make the document too deep", "subdoc invalid-input"),
    Status.SUBDOC_INVALID_COMBO: ("These operations cannot stand together", "subdoc invalid-input"),
    Status.SUBDOC_MULTI_PATH_FAILURE: ("Some of the operations failed", "subdoc special-handling"),
    Status.SUBDOC_SUCCESS_DELETED: ("Done, in a deleted document", "success subdoc item-deleted"),
    Status.SUBDOC_XATTR_INVALID_FLAG_COMBO: ("These flags cannot stand together", "subdoc invalid-input"),
    Status.SUBDOC_XATTR_INVALID_KEY_COMBO: ("These extended attributes cannot stand together", "subdoc invalid-input"),
    Status.SUBDOC_XATTR_UNKNOWN_MACRO: ("There is no such macro", "subdoc invalid-input"),
    Status.SUBDOC_XATTR_UNKNOWN_VATTR: ("There is no such virtual attribute", "subdoc invalid-input"),
    Status.SUBDOC_XATTR_CANT_MODIFY_VATTR: ("Virtual attributes cannot be changed", "subdoc invalid-input"),
    Status.SUBDOC_MULTI_PATH_FAILURE_DELETED: (
        "Some of the operations failed, in a deleted document",
        "subdoc item-deleted special-handling",
    ),
    Status.SUBDOC_INVALID_XATTR_ORDER: ("Extended attributes come before the rest", "subdoc invalid-input"),
    Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO: ("There is no such macro of a virtual attribute", "subdoc invalid-input"),
    Status.SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS: ("The document is not deleted", "subdoc item-only"),
    Status.SUBDOC_DELETED_DOCUMENT_CANT_HAVE_VALUE: ("A deleted document has no value", "subdoc invalid-input"),
    Status.SUBDOC_NOT_BINARY: ("The extended attribute is not binary", "subdoc item-only"),
}
"""Status -> its description, and its attributes for clients."""


def build_error_map(version: int) -> bytes:
    """Return the map, as JSON, in the newest form that is not above `version`.

    Raises:
        ValueError: the version is 0, which does not exist.
    """
    if version < 1:
        raise ValueError(f"error map of version {version}, expected 1 or more")
    return _build_version(min(version, LATEST_VERSION))


@cache
def _build_version(version: int) -> bytes:
    errors = {}
    for status, (description, attributes) in MEANINGS.items():
        known = [name for name in attributes.split() if version > 1 or name not in _OF_VERSION_2]
        errors[f"{status:x}"] = {"name": status.name, "desc": description, "attrs": known}
    return json.dumps({"version": version, "revision": _REVISION, "errors": errors}, separators=(",", ":")).encode()
