"""Vbuckets are read again on request: no document is lost or repeated, also beside writes and kills."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.errors import Error, UsageError
from penstock.spark.lake.changelog.merge_rules import merge_changes
from penstock.spark.lake.tables.lake_lock import hold_lock
from penstock.spark.pipeline.definition.definition import read_definition
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from penstock.spark.pipeline.state.resnapshot import locate_requests, request_resnapshot, wait_for_resnapshot
from penstock.spark.source.offsets import VbucketOffset
from penstock.spark.source.read_positions import add_requests, read_requests, remove_requests
from tests.spark.buckets import current_of, numbered
from tests.spark.lakes import rollback, row
from tests.spark.test_kills import catch_up, check_dependents, kill_at, pipeline, store_first_documents
from tests.spark.test_retention import commit, make_offset

__all__ = ["pipeline"]  # a fixture


def documents_of(tables):
    rows = merge_changes(pa.concat_tables(tables)).to_pylist()
    assert len({each["key"] for each in rows}) == len(rows)
    return {each["key"].encode(): (each["cas"], each["value"]) for each in rows}


def count_rollbacks(tables):
    return sum(pc.sum(pc.equal(each["event"], "rollback")).as_py() or 0 for each in tables)


def test_documents_are_read_again_beside_writes(documents, follow, tmp_path):
    file = tmp_path / "requests.json"
    documents.store(numbered(0, 200))
    query = follow(documents.url, maxChangesPerTrigger="30", resnapshotFile=str(file))
    tables = query.all()
    add_requests(file, dict.fromkeys(range(16), 0))
    for number in range(5):  # other changes, and a new process, between the batches that read the vbuckets again
        documents.store(numbered(number * 10, 250, f"again {number}"))
        documents.remove([f"key-{number}"])
        tables.append(query.step())
        query.restart()
    tables += query.all()
    assert documents_of(tables) == documents.contents()
    assert count_rollbacks(tables) == 16
    for table in tables:  # a vbucket is never there in part
        cut = table.filter(pc.equal(table["event"], "rollback"))["vbucket"].to_pylist()
        for vbucket in cut:
            own = table.filter(pc.equal(table["vbucket"], vbucket))
            assert pc.max(own["seqno"]).as_py() >= own["requested_seqno"].drop_null()[0].as_py()
    assert query.step() is None


def test_stream_that_started_late_gets_the_older_documents(documents, follow, tmp_path):
    file = tmp_path / "requests.json"
    documents.store(numbered(0, 100))
    query = follow(documents.url, startingOffsets="latest", resnapshotFile=str(file), rollback="fail")
    tables = query.all()
    documents.store(numbered(90, 110, "new"))
    tables += query.all()
    assert len(documents_of(tables)) == 20
    add_requests(file, dict.fromkeys(range(16), 0))
    assert documents_of([*tables, *query.all()]) == documents.contents()


def test_requests_are_kept_in_a_file(tmp_path):
    file = tmp_path / "requests.json"
    assert read_requests(file) == {}
    add_requests(file, {3: 0, 4: 1})
    add_requests(file, {4: 2, 5: 0})
    remove_requests(file, [3])
    assert json.loads(file.read_text()) == {"4": 2, "5": 0}
    remove_requests(file, [4, 5])
    assert not file.exists()
    file.write_text("[1]")
    with pytest.raises(UsageError, match=r"requests.json holds '\[1\]'; expected vbuckets with histories"):
        read_requests(file)


def test_wait_ends_with_the_last_vbucket(lake):
    with pytest.raises(UsageError, match="has no position yet; expected the lake of a pipeline that has run"):
        request_resnapshot(lake, range)
    commit(lake, 0, [row(1, 1, b"k", b"1"), row(2, 1, b"l", b"1")], make_offset({1: at(0), 2: at(0)}))
    with pytest.raises(UsageError, match="vbuckets has 99, but the bucket has vbuckets 0 to 63"):
        request_resnapshot(lake, lambda count: [99])
    wanted = request_resnapshot(lake, range)
    assert wanted == read_requests(locate_requests(lake)) == {1: 0, 2: 0}
    assert not wait_for_resnapshot(lake, wanted, 0)  # no run
    # The bucket rolls vbucket 2 back at that moment: this is not the new snapshot.
    rows = [rollback(1, 0, 1), row(1, 1, b"k", b"1", history=1), rollback(2, 1, 1)]
    commit(lake, 1, rows, make_offset({1: at(1), 2: at(1)}))
    with hold_lock(lake.path, 0), pytest.raises(Error, match="after 0 s, 1 vbuckets were not read again; the request"):
        wait_for_resnapshot(lake, wanted, 0)
    assert read_requests(locate_requests(lake)) == {2: 1}
    commit(lake, 2, [rollback(2, 0, 2), row(2, 1, b"l", b"1", history=2)], make_offset({1: at(1), 2: at(2)}))
    assert wait_for_resnapshot(lake, {2: 1}, 0)
    assert not locate_requests(lake).exists()
    assert lake.current().num_rows == 2


def at(history: int) -> VbucketOffset:
    return VbucketOffset(history, 1, 1, requested=1 if history else None)


@pytest.mark.spark
def test_run_that_is_killed_while_it_reads_again(spark, pipeline):
    store_first_documents(pipeline)
    run_pipeline(read_definition(str(pipeline.file)), available_now=True, spark=spark)
    before = pipeline.lake.changelog(["vbucket"]).num_rows
    wanted = request_resnapshot(pipeline.lake, range)
    assert len(wanted) == 16
    kill_at(pipeline, 1, "written")
    assert before < pipeline.lake.changelog(["vbucket"]).num_rows
    catch_up(spark, pipeline)
    assert wait_for_resnapshot(pipeline.lake, wanted, 0)
    changes = pipeline.lake.changelog(["vbucket", "history", "seqno", "event"])
    assert pc.sum(pc.equal(changes["event"], "rollback")).as_py() == 16
    assert changes.group_by(changes.column_names).aggregate([]).num_rows == changes.num_rows
    assert current_of(pipeline.lake) == pipeline.documents.contents()
    check_dependents(pipeline)
