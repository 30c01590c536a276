"""Write the Grafana boards and the alert rules of contrib/ from tables; with --check only compare them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from generated import publish

CONTRIB = Path(__file__).parent.parent / "contrib"

_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 24
"""Of a panel, and of a board, in Grafana's grid."""


class Panel(NamedTuple):
    """A panel of a board.

    Attributes:
        title: the title.
        unit: the unit, as Grafana names it.
        queries: legend -> expression.
    """

    title: str
    unit: str
    queries: dict[str, str]


class Board(NamedTuple):
    """A board.

    Attributes:
        title: the title.
        metric: a metric that every target of the board has.
        label: a label of this metric by which the board can be filtered, beside `instance`.
        panels: the panels.
    """

    title: str
    metric: str
    label: str
    panels: Sequence[Panel]


class Alert(NamedTuple):
    """An alert rule.

    Attributes:
        name: the name.
        expression: the condition.
        minutes: for which it must hold.
        severity: critical: act now; warning: act today.
        summary: one sentence.
    """

    name: str
    expression: str
    minutes: int
    severity: str
    summary: str


_NODE = '{instance=~"$instance"}'
_BUCKET = '{instance=~"$instance", bucket=~"$bucket"}'
_SOURCE = '{instance=~"$instance", source=~"$source"}'
_MISFITS = '{instance=~"$instance", source=~"$source", reason!="unknown field"}'


def rate(metric: str, selector: str, *by: str) -> str:
    """Return the expression of a counter's rate, summed by labels."""
    return f"sum by ({', '.join(by)}) (rate({metric}{selector}[$__rate_interval]))"


def quantile(metric: str, selector: str, part: float, *by: str) -> str:
    """Return the expression of a histogram's quantile for each bucket of a node, and by more labels."""
    inner = f"rate({metric}_bucket{selector}[$__rate_interval])"
    return f"histogram_quantile({part:g}, sum by ({', '.join(('le', 'instance', 'bucket', *by))}) ({inner}))"


NODE = Board(
    "Penstock: nodes",
    "penstock_node_vbuckets",
    "bucket",
    (
        Panel(
            "Operations",
            "ops",
            {
                "{{bucket}} {{operation}}": rate(
                    "penstock_node_operations_total", _BUCKET, "instance", "bucket", "operation"
                )
            },
        ),
        Panel(
            "Latencies of commands",
            "s",
            {
                "{{bucket}} {{command}} 50 %": quantile(
                    "penstock_node_command_duration_seconds", _BUCKET, 0.5, "command"
                ),
                "{{bucket}} {{command}} 99 %": quantile(
                    "penstock_node_command_duration_seconds", _BUCKET, 0.99, "command"
                ),
            },
        ),
        Panel(
            "Refused requests",
            "reqps",
            {"{{instance}} {{status}}": rate("penstock_node_refused_requests_total", _NODE, "instance", "status")},
        ),
        Panel(
            "Connections",
            "short",
            {
                "{{instance}} open": f"penstock_node_open_connections{_NODE}",
                "{{instance}} waiting requests": f"penstock_node_waiting_requests{_NODE}",
            },
        ),
        Panel("Documents", "short", {"{{bucket}} {{state}}": f"penstock_node_documents{_BUCKET}"}),
        Panel("Vbuckets", "short", {"{{bucket}} {{state}}": f"penstock_node_vbuckets{_BUCKET} > 0"}),
        Panel(
            "Memory",
            "bytes",
            {
                "{{bucket}} used": f"penstock_node_memory_used_bytes{_BUCKET}",
                "{{bucket}} quota": f"penstock_node_memory_quota_bytes{_BUCKET} > 0",
            },
        ),
        Panel("Log", "bytes", {"{{bucket}} {{kind}}": f"penstock_node_log_bytes{_BUCKET}"}),
        Panel(
            "Disk",
            "bytes",
            {
                "{{bucket}}": f"penstock_node_disk_bytes{_BUCKET}",
                "{{instance}} free": f"penstock_node_disk_free_bytes{_NODE}",
            },
        ),
        Panel(
            "Commits",
            "s",
            {
                "{{bucket}} 50 %": quantile("penstock_node_commit_duration_seconds", _BUCKET, 0.5),
                "{{bucket}} 99 %": quantile("penstock_node_commit_duration_seconds", _BUCKET, 0.99),
            },
        ),
        Panel("Changes not on disk", "short", {"{{bucket}}": f"penstock_node_unpersisted_changes{_BUCKET}"}),
        Panel(
            "Compaction",
            "s",
            {"{{bucket}} 99 %": quantile("penstock_node_compaction_duration_seconds", _BUCKET, 0.99)},
        ),
        Panel("Streams", "short", {"{{bucket}} {{dialect}}": f"penstock_node_streams{_BUCKET} > 0"}),
        Panel(
            "Sent changes",
            "cps",
            {
                "{{bucket}} {{dialect}}": rate(
                    "penstock_node_sent_changes_total", _BUCKET, "instance", "bucket", "dialect"
                )
            },
        ),
        Panel(
            "Lag of consumers",
            "short",
            {
                "{{bucket}} {{dialect}}": f"penstock_node_remaining_changes{_BUCKET}",
                "{{bucket}} {{dialect}} most": f"penstock_node_largest_remaining_changes{_BUCKET}",
            },
        ),
        Panel(
            "Flow control",
            "short",
            {"{{bucket}} {{dialect}} blocked": f"penstock_node_blocked_producers{_BUCKET}"},
        ),
        Panel(
            "Rollbacks",
            "short",
            {
                "{{bucket}} {{dialect}}": rate(
                    "penstock_node_stream_rollbacks_total", _BUCKET, "instance", "bucket", "dialect"
                )
            },
        ),
        Panel(
            "Events of vbuckets",
            "short",
            {
                "{{bucket}} {{event}}": rate(
                    "penstock_node_vbucket_events_total", _BUCKET, "instance", "bucket", "event"
                )
            },
        ),
        Panel(
            "Logins",
            "short",
            {
                "{{instance}}": rate("penstock_node_logins_total", _NODE, "instance"),
                "{{instance}} refused": rate("penstock_node_refused_logins_total", _NODE, "instance"),
            },
        ),
    ),
)

PIPELINE = Board(
    "Penstock: pipelines",
    "penstock_pipeline_rows_total",
    "source",
    (
        Panel("Lag", "short", {"{{source}}": f"penstock_pipeline_lag{_SOURCE}"}),
        Panel("Rows", "rowsps", {"{{source}}": rate("penstock_pipeline_rows_total", _SOURCE, "instance", "source")}),
        Panel("Bytes", "Bps", {"{{source}}": rate("penstock_pipeline_bytes_total", _SOURCE, "instance", "source")}),
        Panel("Batches", "ops", {"{{source}}": rate("penstock_pipeline_batches_total", _SOURCE, "instance", "source")}),
        Panel("Rows of the changelog", "short", {"{{source}}": f"penstock_pipeline_changelog_rows{_SOURCE}"}),
        Panel(
            "Rollbacks",
            "short",
            {"{{source}}": f"increase(penstock_pipeline_rollbacks_total{_SOURCE}[$__rate_interval])"},
        ),
        Panel("Pending rows", "short", {"{{source}} {{name}}": f"penstock_pipeline_dependent_pending_rows{_SOURCE}"}),
        Panel(
            "Time for merges",
            "percentunit",
            {
                "{{source}} {{name}}": rate(
                    "penstock_pipeline_dependent_merge_seconds_total", _SOURCE, "instance", "source", "name"
                )
            },
        ),
        Panel("Failures in a row", "short", {"{{source}} {{name}}": f"penstock_pipeline_dependent_failures{_SOURCE}"}),
        Panel(
            "Values that do not fit their column",
            "short",
            {"{{source}} {{name}} {{field}}: {{reason}}": f"penstock_pipeline_table_rest_values{_MISFITS}"},
        ),
    ),
)

CONSUMER = Board(
    "Penstock: consumers",
    "penstock_stream_vbuckets",
    "bucket",
    (
        Panel("Lag", "short", {"{{instance}} {{bucket}}": f"penstock_stream_lag_seqnos{_BUCKET}"}),
        Panel("Lag in time", "s", {"{{instance}} {{bucket}}": f"penstock_stream_lag_seconds{_BUCKET}"}),
        Panel(
            "Vbuckets",
            "short",
            {
                "{{instance}} lagging": f"penstock_stream_lagging_vbuckets{_BUCKET}",
                "{{instance}} without a node": f"penstock_stream_missing_vbuckets{_BUCKET}",
            },
        ),
        Panel(
            "Changes",
            "cps",
            {"{{instance}} {{bucket}}": rate("penstock_stream_changes_total", _BUCKET, "instance", "bucket")},
        ),
        Panel(
            "Bytes",
            "Bps",
            {"{{instance}} {{bucket}}": rate("penstock_stream_received_bytes_total", _BUCKET, "instance", "bucket")},
        ),
        Panel("Buffered bytes", "bytes", {"{{instance}} {{bucket}}": f"penstock_stream_buffered_bytes{_BUCKET}"}),
        Panel(
            "Rollbacks, reconnects, errors",
            "short",
            {
                "{{instance}} rollbacks": rate("penstock_stream_rollbacks_total", _BUCKET, "instance"),
                "{{instance}} reconnects": rate("penstock_stream_reconnects_total", _BUCKET, "instance"),
                "{{instance}} errors": rate("penstock_stream_errors_total", _BUCKET, "instance"),
            },
        ),
    ),
)

BOARDS = {"node": NODE, "pipeline": PIPELINE, "consumer": CONSUMER}

_SLOW_COMMITS = (
    "histogram_quantile(0.99, sum by (le, instance, bucket) "
    "(rate(penstock_node_commit_duration_seconds_bucket[5m]))) > 1"
)

ALERTS: dict[str, Sequence[Alert]] = {
    "penstock-nodes": (
        Alert(
            "PenstockStorageFaulty",
            "penstock_node_storage_faulty == 1",
            1,
            "critical",
            "{{ $labels.instance }} refuses changes of {{ $labels.bucket }} because of its disk.",
        ),
        Alert(
            "PenstockDiskFull",
            "penstock_node_disk_free_bytes / penstock_node_disk_size_bytes < 0.1",
            10,
            "warning",
            "Less than a tenth of the disk of {{ $labels.instance }} is free.",
        ),
        Alert(
            "PenstockMemoryNearQuota",
            "penstock_node_memory_used_bytes / (penstock_node_memory_quota_bytes > 0) > 0.95",
            10,
            "warning",
            "{{ $labels.bucket }} on {{ $labels.instance }} uses more than 95 % of its quota.",
        ),
        Alert(
            "PenstockChangesRefused",
            'rate(penstock_node_quota_refusals_total{kind="final"}[5m]) > 0',
            5,
            "critical",
            "{{ $labels.bucket }} on {{ $labels.instance }} refuses changes above its quota.",
        ),
        Alert(
            "PenstockCommitsSlow",
            _SLOW_COMMITS,
            10,
            "warning",
            "One commit in a hundred of {{ $labels.bucket }} on {{ $labels.instance }} takes more than a second.",
        ),
        Alert(
            "PenstockConsumerBlocked",
            "penstock_node_blocked_producers > 0",
            10,
            "warning",
            "A consumer of {{ $labels.bucket }} on {{ $labels.instance }} has acknowledged nothing for 10 minutes.",
        ),
        Alert(
            "PenstockReplicationLags",
            "penstock_node_largest_remaining_changes > 100000",
            15,
            "warning",
            "A consumer or a replica of {{ $labels.bucket }} on {{ $labels.instance }} lags by 100,000 changes.",
        ),
        Alert(
            "PenstockPasswordsGuessed",
            "rate(penstock_node_refused_logins_total[5m]) > 1",
            5,
            "warning",
            "{{ $labels.instance }} refuses more than one login a second.",
        ),
        Alert(
            "PenstockMirrorDisconnected",
            "penstock_node_mirror_connected == 0",
            5,
            "warning",
            "{{ $labels.bucket }} on {{ $labels.instance }} does not reach the bucket that it follows.",
        ),
    ),
    "penstock-pipelines": (
        Alert(
            "PenstockPipelineStalled",
            "rate(penstock_pipeline_rows_total[10m]) == 0 and penstock_pipeline_lag > 0",
            10,
            "critical",
            "Source {{ $labels.source }} of {{ $labels.instance }} lags, and writes no rows.",
        ),
        Alert(
            "PenstockPipelineLagUnknown",
            "penstock_pipeline_batches_total unless on (instance, source) penstock_pipeline_lag",
            5,
            "warning",
            "The bucket of source {{ $labels.source }} of {{ $labels.instance }} does not answer.",
        ),
        Alert(
            "PenstockPipelineMergeFails",
            "penstock_pipeline_dependent_failures > 0",
            5,
            "warning",
            "{{ $labels.kind }} {{ $labels.name }} of {{ $labels.instance }} has failed several times.",
        ),
    ),
    "penstock-consumers": (
        Alert(
            "PenstockConsumerLags",
            "penstock_stream_lag_seconds > 60",
            5,
            "warning",
            "{{ $labels.instance }} lags behind {{ $labels.bucket }} by more than a minute.",
        ),
        Alert(
            "PenstockConsumerWithoutNode",
            "penstock_stream_missing_vbuckets > 0",
            2,
            "critical",
            "{{ $labels.instance }} waits for nodes of {{ $labels.bucket }}.",
        ),
        Alert(
            "PenstockConsumerBlind",
            "time() - penstock_stream_seqnos_timestamp_seconds > 60",
            2,
            "warning",
            "{{ $labels.bucket }} has not reported its seqnos to {{ $labels.instance }} for a minute.",
        ),
    ),
}
"""Group -> its rules."""


def make_board(name: str, board: Board) -> str:
    """Return the JSON of a board, which Grafana imports."""
    document = {
        "uid": f"penstock-{name}",
        "title": board.title,
        "tags": ["penstock"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [*_make_variables(board)]},
        "panels": [_make_panel(number, panel) for number, panel in enumerate(board.panels)],
    }
    return json.dumps(document, indent=2) + "\n"


def _make_variables(board: Board) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    for label in ("instance", board.label):
        query = f"label_values({board.metric}, {label})"
        yield {
            "name": label,
            "label": label.capitalize(),
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": {"query": query, "refId": label},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _make_panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS // _WIDTH)
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": source, "expr": expression, "legendFormat": legend}
            for place, (legend, expression) in enumerate(panel.queries.items())
        ],
    }


def make_rules() -> str:
    """Return the file of alert rules. A text in double quotes is the same in JSON and in YAML."""
    lines = ["# Made by tools/generate_monitoring.py; edit that.", "groups:"]
    for group, alerts in ALERTS.items():
        lines += [f"  - name: {group}", "    rules:"]
        for alert in alerts:
            lines += [
                f"      - alert: {alert.name}",
                f"        expr: {json.dumps(alert.expression)}",
                f"        for: {alert.minutes}m",
                "        labels:",
                f"          severity: {alert.severity}",
                "        annotations:",
                f"          summary: {json.dumps(alert.summary)}",
            ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    boards = {f"grafana/penstock-{name}.json": make_board(name, board) for name, board in BOARDS.items()}
    publish(boards | {"prometheus/penstock-alerts.yml": make_rules()}, CONTRIB)
