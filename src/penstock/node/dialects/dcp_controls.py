"""The settings of DCP CONTROL, and their effects.

Names and values are compared exactly. A switch accepts any value, but only "true" turns it on, as in kv_engine. A
setting that allows the producer to do something does not oblige it. So a consumer that accepts snapshots out of order
still gets ordered ones of large vbuckets. Settings that were removed from the protocol are unknown (EINVAL).
Source: kv_engine docs/dcp, commands/control.md;
dcp/producer.cc, DcpProducer::control.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock.client.filters.filter_control import FILTER_SETTING, parse_filter_setting
from penstock.digits import read_digits
from penstock.errors import InvalidArguments, NotSupported, UsageError
from penstock.node.dialects.dcp_producer import DcpProducer
from penstock.node.streams.pushed_filter import PushedFilter
from penstock.wire.codec.flags import Datatype, OpenFlag

Setter = Callable[[DcpProducer, str], None]

MAX_WINDOW = 2**32 - 1
MIN_NOOP_SECONDS = 0.1
_SECONDS = re.compile(r"[0-9]{1,10}(\.[0-9]{1,10})?")
"""Shortest interval between two NOOPs."""


def apply_control(producer: DcpProducer, key: bytes, value: bytes) -> None:
    """Apply a setting of a DCP connection.

    Args:
        producer: the producer of the connection.
        key: the name of the setting.
        value: the value, as text.

    Raises:
        InvalidArguments: the setting is unknown, or the value is not one of its values.
        NotSupported: the setting contradicts the other settings, or needs collections.
    """
    name = key.decode("latin-1")  # any bytes decode, so an odd name is an unknown setting
    setter = CONTROLS.get(name)
    if setter is None:
        raise InvalidArguments(f"unknown setting {key!r}")
    setter(producer, value.decode("latin-1"))


def _make_value_error(value: str, expected: str) -> InvalidArguments:
    return InvalidArguments(f"found {value[:40]!r}, expected {expected}")


def _set_window(producer: DcpProducer, value: str) -> None:
    window = read_digits(value, MAX_WINDOW)
    if window is None:
        raise _make_value_error(value, f"0 to {MAX_WINDOW}")
    producer.flow.set_window(window)
    producer.resume()


def _set_noop(producer: DcpProducer, value: str) -> None:
    producer.noops.enable(value == "true")


def _set_noop_interval(producer: DcpProducer, value: str) -> None:
    seconds = float(value) if _SECONDS.fullmatch(value) else 0.0
    if seconds < MIN_NOOP_SECONDS:
        raise _make_value_error(value, f"at least {MIN_NOOP_SECONDS} seconds")
    producer.noops.set_interval(seconds)


def _set_backfill_order(producer: DcpProducer, value: str) -> None:
    _accept_values("round-robin", "sequential")(producer, value)
    producer.ring.is_sequential = value == "sequential"


def _set_end_on_close(producer: DcpProducer, value: str) -> None:
    producer.end_on_close = producer.end_on_close or value == "true"


def _enable_sync_writes(producer: DcpProducer, value: str) -> None:
    _accept_values("true")(producer, value)
    if producer.uses_stream_ids:
        raise NotSupported("synchronous writes on a connection with stream ids")
    if not producer.collections:
        raise NotSupported("synchronous writes without collections")
    _refuse_filter(producer)
    producer.sends_prepares = True
    producer.choose_options()


def _set_consumer_name(producer: DcpProducer, value: str) -> None:
    if not value:
        raise _make_value_error(value, "a name")
    _refuse_filter(producer)
    producer.consumer_name = value
    producer.choose_options()


def _refuse_stream_buffer(producer: DcpProducer, value: str) -> None:
    raise NotSupported("no release has buffers of single streams")


def _accept_values(*values: str) -> Setter:
    """Return the setter of a setting without effect on this node. Without `values`, it accepts any value."""

    def check(producer: DcpProducer, value: str) -> None:
        if values and value not in values:
            raise _make_value_error(value, " or ".join(values))

    return check


def _set_expirations(producer: DcpProducer, value: str) -> None:
    producer.sends_expirations = value == "true"
    producer.choose_options()


def _set_ext_metadata(producer: DcpProducer, value: str) -> None:
    producer.sends_ext_metadata = value == "true"
    producer.choose_options()


def _set_compression(producer: DcpProducer, value: str) -> None:
    if not producer.session.datatypes & Datatype.SNAPPY:
        raise InvalidArguments("compressed values, which this connection has not agreed on")
    producer.sends_compressed = value == "true"
    producer.choose_options()


def _enable_stream_ids(producer: DcpProducer, value: str) -> None:
    _accept_values("true")(producer, value)
    if producer.sends_prepares:
        raise NotSupported("stream ids on a connection with synchronous writes")
    producer.uses_stream_ids = True


def _check_deleted_user_xattrs(producer: DcpProducer, value: str) -> None:
    _accept_values("true")(producer, value)
    if not producer.flags & OpenFlag.INCLUDE_DELETED_USER_XATTRS:
        raise InvalidArguments("deleted user xattrs without the flag INCLUDE_DELETED_USER_XATTRS of OPEN")


def _enable_flatbuffers(producer: DcpProducer, value: str) -> None:
    _accept_values("true")(producer, value)
    producer.sends_flatbuffers = True
    producer.choose_options()


def _enable_out_of_order(producer: DcpProducer, value: str) -> None:
    _accept_values("true", "true_with_seqno_advanced")(producer, value)
    producer.out_of_order = value == "true_with_seqno_advanced"
    producer.choose_options()


def _set_marker_version(producer: DcpProducer, value: str) -> None:
    _accept_values("2.2")(producer, value)
    if not producer.collections:
        raise NotSupported("markers of version 2.2 without collections")
    producer.sends_purge_seqno = True
    producer.choose_options()


def _enable_history(producer: DcpProducer, value: str) -> None:
    _accept_values("true")(producer, value)
    producer.accepts_history = True
    producer.choose_options()


def _enable_v7_statuses(producer: DcpProducer, value: str) -> None:
    _accept_values("true")(producer, value)
    producer.uses_v7_statuses = True


def _set_filter(producer: DcpProducer, value: str) -> None:
    if not producer.collections:
        raise NotSupported("a filter without collections")  # its consumer might not know SEQNO_ADVANCED
    if producer.sends_prepares or producer.consumer_name:
        raise NotSupported("a filter for a replica, which needs all changes")
    try:
        setting = parse_filter_setting(value.encode("latin-1"))
    except UsageError as error:
        raise InvalidArguments(str(error)) from None
    if setting.change_filter.reads_values and not producer.options.content.body:
        raise InvalidArguments("a filter of values on a connection without values")
    if setting.change_filter.reads_xattrs and not producer.options.content.xattrs:
        raise InvalidArguments("a filter of xattrs without the flag INCLUDE_XATTRS of OPEN")
    producer.pushed_filter = PushedFilter(setting, len(producer.bucket.store.vbuckets))
    producer.choose_options()


def _refuse_filter(producer: DcpProducer) -> None:
    """Refuse a setting of replicas on a connection with a filter: a replica needs all changes."""
    if producer.pushed_filter is not None:
        raise NotSupported("a setting of replicas on a connection with a filter")


CONTROLS: dict[str, Setter] = {
    "connection_buffer_size": _set_window,
    "stream_buffer_size": _refuse_stream_buffer,
    "enable_noop": _set_noop,
    "set_noop_interval": _set_noop_interval,
    "set_priority": _accept_values("high", "medium", "low"),
    "enable_ext_metadata": _set_ext_metadata,
    # Of releases 4.5 to 5.1. Values stay compressed for every client that has agreed on SNAPPY.
    "enable_value_compression": _accept_values(),
    "force_value_compression": _set_compression,
    # No effect: the node reads the log in place, and has no cursor to drop.
    "supports_cursor_dropping": _accept_values(),
    "supports_cursor_dropping_vulcan": _accept_values(),
    "supports_hifi_MFU": _accept_values(),
    "send_stream_end_on_client_close_stream": _set_end_on_close,
    "enable_expiry_opcode": _set_expirations,
    "enable_stream_id": _enable_stream_ids,
    "enable_sync_writes": _enable_sync_writes,
    "consumer_name": _set_consumer_name,
    "include_deleted_user_xattrs": _check_deleted_user_xattrs,
    "backfill_order": _set_backfill_order,
    "enable_out_of_order_snapshots": _enable_out_of_order,
    "v7_dcp_status_codes": _enable_v7_statuses,
    "flatbuffers_system_events": _enable_flatbuffers,
    "change_streams": _enable_history,
    "max_marker_version": _set_marker_version,
    # It only asks whether the node has cache transfers.
    "cache_transfer": _accept_values(),
    # Of this project: other producers refuse it, and the consumer filters by itself.
    FILTER_SETTING: _set_filter,
}
