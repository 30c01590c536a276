"""Change-stream connections as rows of the dashboard."""

from __future__ import annotations

from penstock.client.dashboard.dashboard_document import ConnectionRow, VbucketStreamRow
from penstock.client.dashboard.stat_rows import name_open_flags
from penstock.node.buckets.endpoint_reports import EndpointReport, StreamRole
from penstock.wire.codec.constants import MAX_SEQNO


def make_endpoint_row(report: EndpointReport, lag_seconds: float) -> ConnectionRow:
    """Return a connection with the sums of its streams.

    Args:
        report: the connection.
        lag_seconds: seconds since its consumer had all changes.
    """
    details = report.details
    return ConnectionRow(
        name=report.name,
        label=report.label,
        dialect=report.dialect,
        role=report.role.value,
        user=report.user,
        peer=report.peer,
        agent=report.agent,
        created=report.created,
        vbuckets=len({stream.vbucket for stream in report.streams}),
        streams=len(report.streams),
        flags=name_open_flags(details.get("flags", 0)),
        filters=sorted({name for stream in report.streams for name in stream.filters}),
        items_sent=report.items_sent,
        bytes_sent=report.bytes_sent,
        bytes_unsent=report.bytes_unsent,
        bytes_acked=details.get("total_acked_bytes"),
        unacked=details.get("unacked_bytes"),
        window=details.get("max_buffer_bytes", 0),
        noop_interval=details.get("noop_tx_interval") if details.get("noop_enabled") else 0.0,
        noop_answered=details.get("noop_answered") or None,
        lag_seqnos=report.items_remaining,
        lag_seconds=round(lag_seconds, 1),
        phase=find_phase(report),
    )


def find_phase(report: EndpointReport) -> str:
    """Return the phase of a connection in words: that of the streams which have most to do."""
    if report.role is StreamRole.CONSUMER:
        return "receiving"
    if not report.streams:
        return "no streams"
    if any("takeover_state" in stream.details for stream in report.streams):
        return "takeover"
    if any(stream.backfill_remaining for stream in report.streams):
        return "backfill"
    return "catching up" if report.items_remaining else "in step"


def make_stream_row(report: EndpointReport, number: int) -> VbucketStreamRow:
    """Return one stream of a connection, for the vbucket that it sends.

    Args:
        report: the connection.
        number: the place of the stream among those of the connection.
    """
    stream = report.streams[number]
    end = stream.end_seqno
    return VbucketStreamRow(
        consumer=report.name,
        label=report.label,
        dialect=report.dialect,
        role=report.role.value,
        state=stream.state,
        start_seqno=stream.start_seqno,
        end_seqno=None if end is None or end >= MAX_SEQNO else end,
        vbuuid=str(stream.details["vb_uuid"]) if "vb_uuid" in stream.details else None,
        snap_start=stream.details.get("snap_start_seqno"),
        snap_end=stream.details.get("snap_end_seqno"),
        seqno=stream.details.get("last_sent_snap_end_seqno"),
        items_sent=stream.items_sent,
        bytes_sent=stream.bytes_sent,
        items_remaining=stream.items_remaining,
    )
