"""A lake with a run that fills its page: rows, misfits, a lag, a rollback, an index that waits, a failed sink."""

import time
from contextlib import contextmanager
from dataclasses import asdict, replace

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.client.signals.web_listener import WebListener
from penstock.spark import Lake
from penstock.spark.dependents.kinds.table_definition import TableDefinition
from penstock.spark.lake.current import current_table
from penstock.spark.lake.current.document_table import describe_current
from penstock.spark.pipeline.definition.definition import read_definition
from penstock.spark.pipeline.run.run_metrics import serve_run
from penstock.spark.pipeline.state import run_state
from penstock.spark.pipeline.state.run_progress import BatchTime, DependentProgress, LagRange, SourceProgress
from penstock.spark.tables.misfits import RestCount, RestReport
from tests.spark.lakes import append, checkpoint, rollback, row

REST = RestReport(
    1, 1, (RestCount("n", "other type", "text", "BIGINT", 1), RestCount("new", "unknown field", "", None, 1))
)
PROGRESS = SourceProgress(
    "beer",
    rows=5,
    changelog_rows=5,
    lag=70,
    batches=2,
    rows_per_second=12.5,
    dependents=(
        DependentProgress("drinks", "table", version=1, rows=1, rest=REST),
        DependentProgress("by_abv", "index", version=0, pending=2),
        DependentProgress("copy", "bucket", version=0, pending=2, error="the node is away", failures=3),
    ),
    lag_ranges=(LagRange(0, 63, 60), LagRange(64, 127, 10)),
    missing_vbuckets=(7, 8, 9),
    last_batch=BatchTime(1, 0.25, 2),
)


def write_lake(directory):
    """Write the lake and its run's state, and return the pipeline's file."""
    letters = directory / "letters"
    letters.mkdir()
    pq.write_table(pa.table({"key": [b"a", b"b", b"c"]}), letters / "batch-0-part-0.parquet")
    file = directory / "pipeline.toml"
    file.write_text(
        'lake = "lake"\n[source.beer]\nurl = "couchbase://127.0.0.1:1/beer"\n[[table]]\ncollection = "_default"\n'
        'name = "drinks"\nschema = "n BIGINT"\n[[index]]\nname = "by_abv"\npath = "abv"\n'
        '[[sink]]\nkind = "bucket"\nname = "copy"\nurl = "couchbase://127.0.0.1:1/copy"\n'
        f'dead_letter_path = "{letters}"\n'
    )
    definition = read_definition(str(file))
    lake = Lake(definition.locate_lake(definition.sources[0]))
    checkpoint(lake.checkpoint, batches=2)
    append(lake, 0, [row(3, 1, b"ale", b"{}"), row(5, 1, b"stout", b"{}")])
    append(
        lake,
        1,
        [row(3, 2, b"ale", None, "deletion"), rollback(5, 0, 1), row(9, 1, b"\xffporter", b'{"n": "x", "new": true}')],
    )
    declared = definition.list_dependents(definition.sources[0])
    tables = [each.open(lake).describe() for each in declared if isinstance(each, TableDefinition)]
    current_table.merge_tables([describe_current(lake), *tables])
    state = replace(run_state.create_run_state(), updated=time.time(), progress=asdict(PROGRESS))
    state.write(lake)
    return file


@contextmanager
def run_page(file, metrics=None, dashboard=None):
    """Serve the page of a run with this progress, and yield the addresses."""
    definition = read_definition(str(file))
    with serve_run(definition, metrics, dashboard or WebListener(0, purpose="the dashboard")) as served:
        served.update(PROGRESS)
        yield served
