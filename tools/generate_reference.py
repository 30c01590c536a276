"""Write the pages of options, statuses and metrics from the code; with --check only compare them."""

from __future__ import annotations

from enum import IntEnum

from generate_options import TABLES
from generated import publish, table
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from penstock.client.signals.consumer_report import ConsumerReport
from penstock.client.signals.report_metrics import ReportCollector
from penstock.client.signals.stream_counts import StreamCounts
from penstock.client.tracing.span_types import ATTRIBUTES, CLIENT_SPANS, EVENTS
from penstock.errors import STATUS_ERRORS
from penstock.node.stats.node_metrics import BUCKET_METRICS, HISTOGRAMS, MIRROR_METRICS, NODE_METRICS, StatMetric
from penstock.spark.pipeline.run.batch_spans import BATCH_ATTRIBUTES, PIPELINE_SPANS
from penstock.spark.pipeline.run.run_metrics import PipelineMetrics
from penstock.spark.pipeline.state.run_progress import DependentProgress, RollbackEvent, SourceProgress
from penstock.spark.tables.misfits import RestCount, RestReport
from penstock.spark.values.column_tree import Reason
from penstock.wire.codec.statuses import Status, StreamEndReason, UprEndReason

MADE = "<!-- Made by tools/generate_reference.py from the code; edit that. -->\n"


def options() -> str:
    """Return the page of all options of the Spark data source."""
    return f"""\
# Options of Spark

{MADE}
Option names are case-insensitive. Unknown options and invalid values raise an error that names the expected values.

## Reading

`spark.read.format("dcp")` and `spark.readStream.format("dcp")` accept these options: see [reading](spark.md).

{TABLES["SourceOptions"]}
## The connection

The query of `url` can have these options too: `couchbases://node/beer?ca=ca.pem`. The same names work in Python and
on the command line.

{TABLES["ConnectionOptions"]}
## Writing

`write.format("dcp")` and `writeStream.format("dcp")` accept these options and those of the connection: see
[writing](sink.md).

{TABLES["SinkOptions"]}"""


def statuses() -> str:
    """Return the page of the statuses of responses and the reasons of stream ends."""

    def row(status: Status) -> tuple[str, ...]:
        error = STATUS_ERRORS.get(status)
        name = f"`{error.__name__}`" if error else "" if status == Status.SUCCESS else "`StatusError`"
        return f"0x{status:02x}", f"`{status.name}`", name, "yes" if error and error.retriable else ""

    def reasons(kind: type[IntEnum]) -> str:
        return table(("code", "name"), [(str(reason.value), f"`{reason.name}`") for reason in kind])

    return f"""\
# Statuses

{MADE}
Every response has a status. The client raises an error of `penstock.errors` for a status that is not SUCCESS. A
status without a class of its own raises `StatusError`, whose attribute `status` has the code. "Retriable" means that
the same request can succeed later.

## Statuses of responses

{table(("code", "status", "error of the client", "retriable"), [row(status) for status in Status])}
## Reasons why a DCP stream ends

{reasons(StreamEndReason)}
## Reasons why a UPR stream ends

{reasons(UprEndReason)}"""


def metrics() -> str:
    """Return the page of the metrics that nodes, pipelines and consumers serve, and of their traces."""
    figures = PipelineMetrics()
    rest = RestReport(misfits=(RestCount("", "", "", None, 0),))
    dependents = (DependentProgress("current", "current", rows=0, rest=rest),)
    figures.update(SourceProgress(lag=0, last_rollback=RollbackEvent(0.0, ()), dependents=dependents))  # of all samples
    collector = ReportCollector()
    collector.newest = ConsumerReport(bucket="", at=0, seqnos_at=1, counts=StreamCounts(last_error_at=1))
    return f"""\
# Metrics

{MADE}
Nodes, pipelines and consumers serve metrics for Prometheus. No metric has a label for a vbucket, a key or a client, so
the number of series does not grow with them.

## Nodes

A node serves these metrics at `/metrics` of its HTTP ports, see [Watch a node](howto/monitor.md). Most values are
[statistics](administration.md#statistics) of STAT. STAT `reset` sets counters to 0, as a restart does.

{list_node_metrics()}
Metrics with the label `bucket` are there once for each bucket whose statistics the user may read; those of mirrors only
for a bucket that follows another one (`penstock serve --follow`). The label `dialect` is `dcp`, `upr` (with its draft)
or `tap`. `status` is a [status](statuses.md) in lower case; statuses without a request are left out.
Histograms have 14 buckets, from 16 microseconds to 268 s. A bucket has about 250 series.

## Pipelines

`penstock pipeline run --metrics [HOST:]PORT` serves these metrics at `/metrics`. So does a pipeline whose file has the
table `[metrics]`: see [pipelines](pipelines.md).

{list_metrics(figures)}
The label `source` names the source of the pipeline. It is empty if the source has no name. The labels `name` and `kind`
name an index, a sink or another table that the pipeline keeps up to date.

`penstock_pipeline_table_rest_values` has at most 20 fields of a table: values that do not fit their column come before
fields without a column. The others are together under the field `*`. `reason` is {REASONS}.
`penstock pipeline status` has the same counts with keys of documents.

## Consumers

A consumer with `metrics_port` and `penstock tail --metrics [HOST:]PORT` serve these metrics, see
[Watch a consumer](howto/watch.md):

{list_metrics(collector)}
## Traces

If a program traces with OpenTelemetry, consumers and pipelines make these spans:
see [OpenTelemetry](howto/watch.md#traces). The name of a span is the operation and the bucket, source or table, such as
`process beer`. No span belongs to a single change, and none has a password, a key or a value.

{list_spans()}
| attribute | meaning |
| --- | --- |
{list_attributes()}

{list_events()}"""


def list_spans() -> str:
    """Return the table of all spans."""
    rows = [
        (f"`{span.operation}`", span.role, span.text, ", ".join(f"`{name}`" for name in span.events))
        for span in (*CLIENT_SPANS, *PIPELINE_SPANS)
    ]
    return table(("operation", "kind", "work", "events"), rows)


def list_attributes() -> str:
    """Return the rows of the attributes of all spans."""
    spans: dict[str, list[str]] = {}
    for span in (*CLIENT_SPANS, *PIPELINE_SPANS):
        for name in span.attributes:
            spans.setdefault(name, []).append(span.operation)
    rows = {
        name: f"{ATTRIBUTES.get(name) or BATCH_ATTRIBUTES[name]} ({', '.join(f'`{each}`' for each in operations)})"
        for name, operations in sorted(spans.items())
    }
    return "\n".join(f"| `{name}` | {text} |" for name, text in rows.items())


def list_events() -> str:
    """Return the table of the events of spans."""
    rows = [(f"`{name}`", text, ", ".join(f"`{each}`" for each in names)) for name, (text, names) in EVENTS.items()]
    return table(("event", "meaning", "attributes"), rows)


def list_node_metrics() -> str:
    """Return the table of a node's metrics."""
    rows = [make_node_row(metric, ()) for metric in NODE_METRICS]
    rows += [make_node_row(metric, ("bucket",)) for metric in (*BUCKET_METRICS, *MIRROR_METRICS)]
    for name, metric in HISTOGRAMS.items():
        labels = f"`bucket`, `{metric.label}`" if metric.label else "`bucket`"
        rows.append((f"`penstock_node_{name}`", "histogram", labels, metric.text))
    return table(("metric", "type", "labels", "meaning"), rows)


def make_node_row(metric: StatMetric, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the row of a metric of a node with these labels and its own."""
    family = metric.make_family(names)
    shown = ", ".join(f"`{name}`" for name in (*names, metric.label) if name)
    return f"`{family.name}{'_total' if metric.is_counter else ''}`", family.type, shown, metric.text


def list_metrics(collector: Collector) -> str:
    """Return the table of a collector's metrics."""
    rows = [
        (
            f"`{family.name}{'_total' if family.type == 'counter' else ''}`",
            family.type,
            labels(family),
            family.documentation,
        )
        for family in collector.collect()
    ]
    return table(("metric", "type", "labels", "meaning"), rows)


REASONS = ", ".join(f"`{reason.words}`" for reason in Reason)
"""Why a value is in `_rest`."""


def labels(family: Metric) -> str:
    """Return the names of a family's labels."""
    return ", ".join(f"`{name}`" for name in family.samples[0].labels)


PAGES = {"options.md": options, "statuses.md": statuses, "metrics.md": metrics}

if __name__ == "__main__":
    publish({name: made() for name, made in PAGES.items()})
