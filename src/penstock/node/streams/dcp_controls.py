"""The settings of a change-stream connection: what DCP CONTROL may say, and what comes of it.

Names and values are compared exactly. A switch takes any value, and "true" alone turns it on, as in kv_engine. What a
setting allows the producer to do need not be done: a consumer that accepts snapshots out of order accepts ordered ones.
What was taken out of the protocol is unknown (EINVAL). What is in it but needs something that is not here yet is
refused as NOT_YET says. Source: kv_engine docs/dcp, commands/control.md; dcp/producer.cc, DcpProducer::control.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.errors import InvalidArguments, NotSupported
from penstock.node.streams.dcp_producer import DcpProducer
from penstock.node.streams.not_yet import NOT_YET, refuse
from penstock.wire.codec.flags import Datatype, OpenFlag

__all__ = ["control"]

Setter = Callable[[DcpProducer, str], None]

MAX_WINDOW = 2**32 - 1
LEAST_NOOP_SECONDS = 0.1


def control(producer: DcpProducer, key: bytes, value: bytes) -> None:
    """Apply a setting. Raises InvalidArguments for an unknown one or a wrong value, and as `not_yet.refuse` does."""
    name = key.decode("latin-1")
    setter = CONTROLS.get(name)
    if setter is None:
        raise InvalidArguments(f"unknown setting {key!r}")
    setter(producer, value.decode("latin-1"))
    if name in NOT_YET:
        refuse(name)


def _refuse(value: str, expected: str) -> InvalidArguments:
    return InvalidArguments(f"found {value[:40]!r}, expected {expected}")


def _window(producer: DcpProducer, value: str) -> None:
    if not (value.isascii() and value.isdigit() and len(value) <= 10 and int(value) <= MAX_WINDOW):
        raise _refuse(value, f"0 to {MAX_WINDOW}")
    producer.flow.set_window(int(value))
    producer.resume()


def _noop(producer: DcpProducer, value: str) -> None:
    producer.noops.enable(value == "true")


def _noop_interval(producer: DcpProducer, value: str) -> None:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not LEAST_NOOP_SECONDS <= seconds < math.inf:
        raise _refuse(value, f"at least {LEAST_NOOP_SECONDS} seconds")
    producer.noops.set_interval(seconds)


def _backfill_order(producer: DcpProducer, value: str) -> None:
    _one_of("round-robin", "sequential")(producer, value)
    producer.ring.is_sequential = value == "sequential"


def _end_on_close(producer: DcpProducer, value: str) -> None:
    producer.end_on_close = producer.end_on_close or value == "true"


def _consumer_name(producer: DcpProducer, value: str) -> None:
    """Only synchronous replication, which is not offered, would make use of it. The layout wants a value."""


def _stream_buffer(producer: DcpProducer, value: str) -> None:
    raise NotSupported("streams have no buffers of their own, in no release")


def _one_of(*values: str) -> Setter:
    """Make the setter of a setting without effect here. No values: any."""

    def check(producer: DcpProducer, value: str) -> None:
        if values and value not in values:
            raise _refuse(value, " or ".join(values))

    return check


def _expiries(producer: DcpProducer, value: str) -> None:
    producer.expiries = value == "true"
    producer.choose_options()


def _ext_metadata(producer: DcpProducer, value: str) -> None:
    producer.ext_metadata = value == "true"
    producer.choose_options()


def _compression(producer: DcpProducer, value: str) -> None:
    if not producer.session.datatypes & Datatype.SNAPPY:
        raise InvalidArguments("compressed values, which this connection has not agreed on")
    producer.compress = value == "true"
    producer.choose_options()


def _stream_ids(producer: DcpProducer, value: str) -> None:
    _one_of("true")(producer, value)
    producer.several_streams = True


def _deleted_user_xattrs(producer: DcpProducer, value: str) -> None:
    _one_of("true")(producer, value)
    if not producer.flags & OpenFlag.INCLUDE_DELETED_USER_XATTRS:
        raise InvalidArguments("deleted user xattrs, which OPEN has not asked for")


def _flatbuffers(producer: DcpProducer, value: str) -> None:
    _one_of("true")(producer, value)
    producer.flatbuffers = True
    producer.choose_options()


def _marker_version(producer: DcpProducer, value: str) -> None:
    _one_of("2.2")(producer, value)
    if not producer.collections:
        raise NotSupported("markers of version 2.2 without collections")
    producer.purge_seqno = True
    producer.choose_options()


def _v7_codes(producer: DcpProducer, value: str) -> None:
    _one_of("true")(producer, value)
    producer.v7_codes = True


CONTROLS: dict[str, Setter] = {
    "connection_buffer_size": _window,
    "stream_buffer_size": _stream_buffer,
    "enable_noop": _noop,
    "set_noop_interval": _noop_interval,
    "set_priority": _one_of("high", "medium", "low"),
    "enable_ext_metadata": _ext_metadata,
    "enable_value_compression": _one_of(),  # of 4.5 to 5.1; values stay compressed for clients that agreed on SNAPPY
    "force_value_compression": _compression,
    "supports_cursor_dropping": _one_of(),
    "supports_cursor_dropping_vulcan": _one_of(),
    "supports_hifi_MFU": _one_of(),
    "send_stream_end_on_client_close_stream": _end_on_close,
    "enable_expiry_opcode": _expiries,
    "enable_stream_id": _stream_ids,
    "enable_sync_writes": _one_of("true"),
    "consumer_name": _consumer_name,
    "include_deleted_user_xattrs": _deleted_user_xattrs,
    "backfill_order": _backfill_order,
    "enable_out_of_order_snapshots": _one_of("true", "true_with_seqno_advanced"),
    "v7_dcp_status_codes": _v7_codes,
    "flatbuffers_system_events": _flatbuffers,
    "change_streams": _one_of("true"),
    "max_marker_version": _marker_version,
    "cache_transfer": _one_of(),
}
