"""Write the pages of options, statuses, metrics and Python names from the code; with --check only compare them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path

from generate_options import TABLES
from generated import publish
from prometheus_client.core import Metric

import penstock
import penstock.spark
from penstock.errors import STATUS_ERRORS
from penstock.spark.pipeline.run.run_metrics import Figures
from penstock.wire.codec.statuses import Status, StreamEndReason, UprEndReason

DOCS = Path(__file__).parent.parent / "docs"

MADE = "<!-- Made by tools/generate_reference.py from the code; edit that. -->\n"


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


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
    """Return the page of the metrics that a pipeline serves."""
    rows = [
        (
            f"`{family.name}{'_total' if family.type == 'counter' else ''}`",
            family.type,
            labels(family),
            family.documentation,
        )
        for family in Figures().collect()
    ]
    return f"""\
# Metrics

{MADE}
`penstock pipeline run --metrics PORT` serves these metrics for Prometheus at `http://127.0.0.1:PORT/metrics`. So does
a pipeline whose file has the table `[metrics]`: see [pipelines](pipelines.md). A node serves no metrics; its figures
are [STAT groups](administration.md#statistics).

{table(("metric", "type", "labels", "meaning"), rows)}
The label `source` names the source of the pipeline. It is empty if the source has no name. The labels `name` and `kind`
name an index, a sink or another table that the pipeline keeps up to date.
"""


def labels(family: Metric) -> str:
    """Return the names of a family's labels, which all families of this collector have."""
    named: tuple[str, ...] = getattr(family, "_labelnames")  # noqa: B009 - the library has no public name for it
    return ", ".join(f"`{name}`" for name in named)


def python() -> str:
    """Return the page from which mkdocstrings makes the reference of all public names."""
    parts = [
        "# Python in full\n",
        MADE,
        "This page has every public name with its members and their docstrings. [Python names](api.md) is the short\n"
        "form. Only the built site shows the docstrings.\n",
    ]
    for package in (penstock, penstock.spark):
        parts.append(f"## {package.__name__}\n")
        names = [name for name in package.__all__ if not name.startswith("__")]
        parts += [f"::: {package.__name__}.{name}\n" for name in names if package is penstock or not shared(name)]
    return "\n".join(parts)


def shared(name: str) -> bool:
    """Tell whether `penstock` exports the same object under this name."""
    return name in penstock.__all__ and getattr(penstock, name) is getattr(penstock.spark, name)


PAGES = {"options.md": options, "statuses.md": statuses, "metrics.md": metrics, "python.md": python}

if __name__ == "__main__":
    sys.exit(max(publish(DOCS / name, made()) for name, made in PAGES.items()))
