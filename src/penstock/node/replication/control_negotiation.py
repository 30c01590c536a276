"""The settings that a consumer requests from its peer before its streams, one after the other."""

from __future__ import annotations

import logging
from typing import Final

from penstock.wire.codec.statuses import Status

logger = logging.getLogger("penstock.node")

BUFFER_BYTES: Final = 10 * 1024 * 1024
"""Bytes that the peer may send before an acknowledgement. Source: kv_engine, dcp_conn_buffer_size of its first form."""

NOOP_SECONDS: Final = 180
"""Seconds between two NOOPs of the peer. Source: Couchbase 3.1.6, which requests this interval."""

_NOOP = b"enable_noop"
_V7_STATUSES = b"v7_dcp_status_codes"
_SYNC_WRITES = b"enable_sync_writes"
_CONSUMER_NAME = b"consumer_name"
_CACHE_TRANSFER = b"cache_transfer"

_CLASSIC: Final = (
    (b"connection_buffer_size", b"%d" % BUFFER_BYTES),
    (_NOOP, b"true"),
    (b"set_noop_interval", b"%d" % NOOP_SECONDS),
)
"""The settings that every release knows. Couchbase 3.1.6 requests these three."""

_WITH_COLLECTIONS: Final = (
    (b"set_priority", b"high"),
    (b"supports_cursor_dropping_vulcan", b"true"),
    (b"send_stream_end_on_client_close_stream", b"true"),
    (b"enable_expiry_opcode", b"true"),
    (b"include_deleted_user_xattrs", b"true"),
    (_V7_STATUSES, b"true"),
    (b"flatbuffers_system_events", b"true"),
    (b"change_streams", b"true"),
    (b"max_marker_version", b"2.2"),
    (_CACHE_TRANSFER, b"true"),
)
"""Settings that a peer with collections knows. Source: kv_engine, dcp/consumer.cc, in its order."""


class ControlNegotiation:
    """The settings of a consumer: those to request, and those that the peer has accepted.

    Attributes:
        has_started: whether the first setting was requested.
    """

    def __init__(self, *, has_collections: bool, consumer_name: str = "") -> None:
        """Plan the settings of a connection.

        Args:
            has_collections: whether the connection has agreed on collections. Such a peer knows more settings.
            consumer_name: the name in the topology of vbuckets, with which the consumer acknowledges synchronous
                writes; empty: it gets none.
        """
        self.has_started = False
        self._left = list(_CLASSIC + _WITH_COLLECTIONS if has_collections else _CLASSIC)
        if has_collections and consumer_name:
            self._left += [(_SYNC_WRITES, b"true"), (_CONSUMER_NAME, consumer_name.encode())]
        self._requested: tuple[int, bytes] | None = None
        self._accepted: set[bytes] = set()

    @property
    def is_complete(self) -> bool:
        """Whether all settings were answered, so that streams may be requested."""
        return self.has_started and not self._left and self._requested is None

    @property
    def has_noops(self) -> bool:
        """Whether the peer sends NOOPs."""
        return _NOOP in self._accepted

    @property
    def has_v7_statuses(self) -> bool:
        """Whether a missing stream and a wrong opaque have statuses of their own."""
        return _V7_STATUSES in self._accepted

    @property
    def has_cache_transfer(self) -> bool:
        """Whether the peer can send the documents in its memory."""
        return _CACHE_TRANSFER in self._accepted

    @property
    def has_sync_writes(self) -> bool:
        """Whether the peer sends prepares, and accepts acknowledgements of them."""
        return {_SYNC_WRITES, _CONSUMER_NAME} <= self._accepted

    def take_next(self, opaque: int) -> tuple[bytes, bytes] | None:
        """Return the name and value of the next setting to request, None after the last one.

        Args:
            opaque: the opaque of the request.
        """
        self.has_started = True
        if not self._left:
            return None
        setting = self._left.pop(0)
        self._requested = opaque, setting[0]
        return setting

    def is_requested(self, opaque: int) -> bool:
        """Return whether an opaque is that of the setting without an answer."""
        return self._requested is not None and self._requested[0] == opaque

    def handle_answer(self, status: int) -> None:
        """Record the answer to the requested setting. An older peer refuses settings that it does not know."""
        assert self._requested is not None
        _, name = self._requested
        self._requested = None
        if status == Status.SUCCESS:
            self._accepted.add(name)
        else:
            logger.info("the peer refuses the setting %s with status 0x%02x", name.decode(), status)
