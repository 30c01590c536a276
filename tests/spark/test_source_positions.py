"""The start and the end of reads of `format("dcp")`, and the effect of rollbacks, with the calls that Spark makes."""

import json

import pyarrow as pa
import pytest

from penstock.errors import Error, UsageError
from penstock.node import Node
from penstock.spark import latest_offsets
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.observe import CompactDb
from tests.node.wire_client import connected
from tests.spark.buckets import Documents, numbered, read_batch
from tests.spark.test_protocols import contents, fail_over


def identities(rows):
    return list(zip(*(rows[name].to_pylist() for name in ("vbucket", "history", "seqno")), strict=True))


def write_positions(rows):
    """Return the newest position of each vbucket in the rows, as JSON in the form that users write."""
    newest = {row["vbucket"]: row for row in rows.sort_by("seqno").to_pylist()}
    return json.dumps(
        {str(vb): {"vbuuid": str(row["vbuuid"] % 2**64), "seqno": row["seqno"]} for vb, row in newest.items()}
    )


def test_batch_read_and_stream_after_it_have_every_change_once(documents, follow):
    documents.store(numbered(0, 500))
    now = latest_offsets(documents.url)
    documents.store(numbered(500, 600))
    documents.store(numbered(0, 50, "again"))
    past = read_batch(documents.url, endingOffsets=now)
    rows = pa.concat_tables([past, *follow(documents.url, startingOffsets=now).all()])
    assert past.num_rows <= 500
    assert len(set(identities(rows))) == rows.num_rows
    assert contents(rows) == documents.contents()


def test_batches_between_consecutive_positions_have_every_change(documents):
    ends, tables = [], []
    for round_ in range(3):
        documents.store(numbered(0, 200, f"round {round_}"))
        ends.append(latest_offsets(documents.url))
        bounds = {"endingOffsets": ends[-1]} | ({"startingOffsets": ends[-2]} if round_ else {})
        tables.append(read_batch(documents.url, **bounds))
    assert [table.num_rows for table in tables] == [200] * 3
    assert contents(pa.concat_tables(tables)) == documents.contents()
    assert read_batch(documents.url, startingOffsets=ends[0], endingOffsets=ends[0]).num_rows == 0
    with pytest.raises(UsageError, match=r"vbucket \d+: the start, seqno \d+, is behind the end, seqno \d+"):
        read_batch(documents.url, startingOffsets=ends[1], endingOffsets=ends[0])


def test_positions_of_users_are_starts_and_ends(documents, follow):
    documents.store(numbered(0, 300))
    position = write_positions(read_batch(documents.url))
    documents.store(numbered(300, 400))
    expected = {key.encode() for key in numbered(300, 400)}
    assert {*read_batch(documents.url, startingOffsets=position)["key"].to_pylist()} == expected
    (followed,) = follow(documents.url, startingOffsets=position).all()
    assert {*followed["key"].to_pylist()} == expected
    assert read_batch(documents.url, endingOffsets=position).num_rows == 300
    with pytest.raises(UsageError, match="vbucket 16, expected one below 16"):
        read_batch(documents.url, startingOffsets='{"16": {"vbuuid": 1, "seqno": 1}}')


def test_start_in_another_history_causes_a_rollback_row(documents, follow):
    documents.store(numbered(0, 300))
    other_history = json.dumps({"3": {"vbuuid": 12345, "seqno": 2}})
    for rows in (
        read_batch(documents.url, startingOffsets=other_history),
        *follow(documents.url, startingOffsets=other_history).all(),
    ):
        rollbacks = [row for row in rows.to_pylist() if row["event"] == "rollback"]
        assert [(each["vbucket"], each["seqno"], each["history"]) for each in rollbacks] == [(3, 0, 1)]
        assert contents(rows) == documents.contents()


def test_end_that_the_history_has_lost_is_refused(documents):
    documents.store(numbered(0, 300))
    now = latest_offsets(documents.url)
    documents.flush()
    with pytest.raises(
        Error, match=r"vbucket 0: the bucket's history no longer has the end, seqno \d+, that was given"
    ):
        read_batch(documents.url, endingOffsets=now)


def test_offsets_of_another_bucket_size_are_refused(documents):
    with Node.running(["default"], vbuckets=32) as other:
        offset = latest_offsets(other.url("default"))
    with pytest.raises(UsageError, match=r"the bucket has 16 vbuckets, expected 32"):
        read_batch(documents.url, startingOffsets=offset)
    with pytest.raises(UsageError, match=r"the bucket has 16 vbuckets, expected 32"):
        read_batch(documents.url, endingOffsets=offset)


class TestVbucketsOption:
    def test_limits_the_plans_requests_and_streams(self, node, documents, follow):
        documents.store(numbered(0, 2_000))
        before = documents.stat("ep_dcp_items_sent"), documents.stat("ep_dcp_streams_opened")
        chosen = {"vbuckets": "2-3,9"}
        query = follow(documents.url, **chosen)
        (table,) = query.all()
        assert {*table["vbucket"].to_pylist()} == {2, 3, 9}
        assert documents.stat("ep_dcp_items_sent") - before[0] == table.num_rows
        assert documents.stat("ep_dcp_streams_opened") - before[1] == 3
        assert sorted(identities(read_batch(documents.url, **chosen))) == sorted(identities(table))
        with_end = read_batch(documents.url, endingOffsets=latest_offsets(documents.url, vbuckets="9"), **chosen)
        assert {*with_end["vbucket"].to_pylist()} == {9}
        documents.store(numbered(0, 2_000, "again"))
        query.options["vbuckets"] = "3-4"
        query.restart()
        (more,) = query.all()
        seqnos = {
            vbucket: [*sorted(more.filter(pa.compute.field("vbucket") == vbucket)["seqno"].to_pylist())]
            for vbucket in (3, 4)
        }
        assert {*more["vbucket"].to_pylist()} == {3, 4}
        assert min(seqnos[3]) > max(seqno for vbucket, _, seqno in identities(table) if vbucket == 3)

    def test_starts_at_the_end_of_its_vbuckets(self, documents, follow):
        documents.store(numbered(0, 500))
        query = follow(documents.url, vbuckets="5", startingOffsets="latest")
        assert query.step().num_rows == 0
        documents.store(numbered(0, 500, "again"))
        (table,) = query.all()
        assert {*table["vbucket"].to_pylist()} == {5}
        assert {row["value"][:5] for row in table.to_pylist()} == {b"again"}

    def test_with_unknown_vbuckets_is_refused(self, documents, follow):
        for read in (lambda **o: follow(documents.url, **o).step(), lambda **o: read_batch(documents.url, **o)):
            with pytest.raises(UsageError, match="option vbuckets has 16, expected numbers below the bucket's 16"):
                read(vbuckets="3,16")


class TestQueryEnds:
    def fail_over(self, node):
        fail_over(node, 3, 5)

    def test_by_a_rollback_if_the_option_requires_it(self, node, documents, follow):
        documents.store(numbered(0, 1_000))
        query = follow(documents.url, rollback="fail", failOnDataLoss="true")
        query.all()
        self.fail_over(node)
        documents.store(numbered(0, 100, "again"))
        for _ in range(2):
            with pytest.raises(
                Error, match=r"vbucket 3 rolled back from seqno \d+ to 0, and option rollback is 'fail'"
            ):
                query.step()
            query.restart()
        start, batch = json.dumps(query.start), {"rollback": "fail"}
        with pytest.raises(Error, match="vbucket 3 rolled back"):
            read_batch(documents.url, startingOffsets=start, **batch)
        query.options["rollback"] = "row"
        query.restart()
        (rows,) = query.all()
        assert rows["event"].to_pylist().count("rollback") == 1

    def test_by_a_rollback_that_was_planned_before_the_option(self, node, documents, follow):
        documents.store(numbered(0, 1_000))
        query = follow(documents.url)
        query.all()
        self.fail_over(node)
        end = query.reader.latestOffset(query.start, query.reader.getDefaultReadLimit())
        query.options["rollback"] = "fail"
        query.restart()
        with pytest.raises(Error, match="vbucket 3 rolled back"):
            query.reader.partitions(query.start, end)

    def test_by_deletions_that_were_purged_unread(self, tmp_path, follow):
        storage = {"data_dir": tmp_path, "settings": BucketSettings(purge_age=0)}
        with Node.running(["default"], 4, **storage) as node, Documents.of(node.url("default")) as documents:
            documents.store(numbered(0, 400))
            queries = {loss: follow(documents.url, failOnDataLoss=loss) for loss in ("true", "false")}
            for query in queries.values():
                query.all()
            documents.remove([f"key-{number}" for number in range(200)])
            documents.store(numbered(400, 500))  # the newest change is never purged
            purge(node)
            sentence = r"vbucket 0: deletions behind seqno \d+ were purged before they were read, and option failOnData"
            with pytest.raises(Error, match=sentence):
                queries["true"].step()
            rows = pa.concat_tables(queries["false"].all())
        rollbacks = [row for row in rows.to_pylist() if row["event"] == "rollback"]
        assert sorted((each["vbucket"], each["seqno"]) for each in rollbacks) == [(vbucket, 0) for vbucket in range(4)]


def purge(node):
    """Compact a node until it has purged all deletions; a node keeps deletions of the current second."""
    with connected(node) as client:
        for _ in range(10_000):
            assert client.status(CompactDb()) == Status.SUCCESS
            found = client.stats("vbucket-seqno")
            if all(found[f"vb_{vbucket}:purge_seqno"] != "0" for vbucket in range(4)):
                return
    raise AssertionError("nothing was purged")
