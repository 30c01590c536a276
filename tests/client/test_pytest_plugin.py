"""The pytest plugin: its fixtures in test runs of their own, and the faults of its clusters with our client."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.errors import UsageError
from tests.client.peer import in_loop
from tests.patience import PATIENCE

pytest_plugins = ["pytester"]

EXAMPLE = Path(__file__).parents[2] / "examples" / "testing" / "test_letter_counts.py"


def run_tests(pytester, text, *options):
    pytester.makepyfile(text)
    return pytester.runpytest_inprocess("-p", "penstock.pytest", "-p", "no:cacheprovider", *options)


def test_each_test_has_a_bucket_of_its_own_on_one_node(pytester):
    result = run_tests(
        pytester,
        """
        import asyncio
        import penstock

        seen = []

        async def count(url):
            async with penstock.connect(url) as bucket:
                await bucket.upsert("key", b"value")
                return len([change async for change in bucket.changes(stop="now")])

        def check(bucket, node):
            assert asyncio.run(count(bucket.url)) == 1
            seen.append((bucket.name, node))

        def test_one(penstock_bucket, penstock_node):
            check(penstock_bucket, penstock_node)

        def test_two(penstock_bucket, penstock_node):
            check(penstock_bucket, penstock_node)
            assert seen[0][0] != seen[1][0]
            assert seen[0][1] is seen[1][1]
            assert seen[0][0] not in penstock_node.node.buckets
        """,
    )
    result.assert_outcomes(passed=2)


def test_end_of_a_test_heals_the_node(pytester):
    result = run_tests(
        pytester,
        """
        import asyncio
        import penstock

        def test_one(penstock_bucket, penstock_node):
            penstock_node.proxy.black_hole()
            penstock_node.proxy.refuse()
            penstock_node.stop()

        def test_two(penstock_bucket):
            async def store():
                async with penstock.connect(penstock_bucket.url) as bucket:
                    await bucket.upsert("key", b"value")
            asyncio.run(store())
        """,
    )
    result.assert_outcomes(passed=2)


def test_fixtures_of_every_scope_share_a_bucket(pytester):
    result = run_tests(
        pytester,
        """
        import asyncio
        import unittest
        import penstock
        import pytest

        async def store(url, key):
            async with penstock.connect(url) as bucket:
                await bucket.upsert(key, b"value")
                return sorted([change.key async for change in bucket.changes(stop="now")])

        @pytest.fixture(scope="session")
        def of_session(penstock_bucket_factory, penstock_node):
            return penstock_bucket_factory("chosen", vbuckets=4)

        @pytest.fixture(scope="module")
        def of_module(penstock_bucket_factory):
            return penstock_bucket_factory()

        @pytest.fixture(scope="class")
        def of_class(request, penstock_bucket_factory):
            request.cls.bucket = penstock_bucket_factory()

        @pytest.mark.parametrize("key", [b"a", b"b", b"c"])
        def test_module(of_module, of_session, penstock_bucket, penstock_node, key):
            expected = [each for each in (b"a", b"b", b"c") if each <= key]
            assert asyncio.run(store(of_module.url, key)) == expected
            assert asyncio.run(store(of_session.url, key)) == expected
            assert asyncio.run(store(penstock_bucket.url, key)) == [key]
            assert len({of_module.name, of_session.name, penstock_bucket.name}) == 3
            assert (of_session.name, of_session.vbuckets) == ("chosen", 4)
            penstock_node.proxy.black_hole()
            penstock_node.stop()

        @pytest.mark.usefixtures("of_class")
        class TestOfUnittest(unittest.TestCase):
            def test_one(self):
                assert asyncio.run(store(self.bucket.url, b"one")) == [b"one"]

            def test_two(self):
                assert asyncio.run(store(self.bucket.url, b"two")) == [b"one", b"two"]

        class TestOther:
            @pytest.mark.anyio
            async def test_coroutine(self, of_session, penstock_bucket):
                assert await store(penstock_bucket.url, b"x") == [b"x"]
                assert await store(of_session.url, b"d") == [b"a", b"b", b"c", b"d"]

        @pytest.fixture
        def anyio_backend():
            return "asyncio"
        """,
    )
    result.assert_outcomes(passed=6)


@pytest.mark.process
def test_each_process_of_a_parallel_run_has_a_node_of_its_own(pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="module")
        def shared(penstock_bucket_factory):
            return penstock_bucket_factory("shared")

        @pytest.mark.parametrize("number", range(4))
        def test_name(shared, penstock_bucket, penstock_node, number):
            assert {"shared", penstock_bucket.name} <= {*penstock_node.node.buckets}
        """
    )
    result = pytester.runpytest_subprocess("-p", "penstock.pytest", "-p", "xdist", "-n", "2")
    result.assert_outcomes(passed=4)


def test_cluster_has_the_chosen_size(pytester):
    result = run_tests(
        pytester,
        """
        def test_cluster(penstock_cluster):
            cluster = penstock_cluster(2, vbuckets=8, bucket="beer")
            assert len(cluster.nodes) == 2
            assert (cluster.bucket.name, cluster.bucket.vbuckets) == ("beer", 8)
            assert cluster.bucket.url == cluster.url + "/beer"
            other = penstock_cluster(1)
            assert other.bucket.vbuckets == 4
        """,
        "-o",
        "penstock_vbuckets=4",
    )
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("options", "call", "text"),
    [
        ((), "penstock_cluster(9)", "a cluster of 9 nodes, expected 1 to 8"),
        ((), "penstock_cluster(1).bucket.fail_over(0)", "node 0 is the only one that runs"),
        ((), "penstock_cluster(1).bucket.find_owner(16)", "vbucket 16 of bucket * expected 0 to 15"),
        (("-o", "penstock_vbuckets=3"), "penstock_cluster(1)", "penstock_vbuckets = 3: expected a power of two"),
    ],
)
def test_errors_name_the_expected_values(pytester, options, call, text):
    result = run_tests(pytester, f"def test_it(penstock_cluster): {call}", *options)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{text}*"])


@pytest.mark.process
def test_processes_of_xdist_have_nodes_of_their_own(pytester):
    pytester.makepyfile(
        """
        import asyncio
        import penstock
        import pytest

        @pytest.mark.parametrize("number", range(6))
        def test_it(penstock_bucket, number):
            async def store():
                async with penstock.connect(penstock_bucket.url) as bucket:
                    await bucket.upsert("key", b"value")
                    assert [change.seqno async for change in bucket.changes(stop="now")] == [1]
            asyncio.run(store())
        """
    )
    result = pytester.runpytest_subprocess("-p", "penstock.pytest", "-n", "2")
    result.assert_outcomes(passed=6)


@pytest.mark.process
def test_unused_plugin_imports_nothing():
    script = (
        "import sys, penstock\n"
        "assert 'pytest' not in sys.modules\n"
        "before = {*sys.modules}\n"
        "import pytest\n"
        "import penstock.pytest\n"
        "found = [name for name in {*sys.modules} - before if name.startswith('penstock.')]\n"
        "assert found == ['penstock.pytest'], found\n"
        "assert not {'asyncio', 'numpy', 'pyarrow'} & {*sys.modules}\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)


# Faults of clusters


async def read_all(bucket, **options):
    return [change async for change in bucket.changes(stop="now", **options)]


@in_loop
async def write(url, first, behind):
    async with penstock.connect(url) as bucket:
        await bucket.upsert_many((f"k{number}", b"%d" % number) for number in range(first, behind))


@in_loop
async def check_documents(url, count):
    async with penstock.connect(url) as bucket:
        assert {change.key for change in await read_all(bucket)} == {b"k%d" % number for number in range(count)}


def test_restarted_node_has_its_data_and_its_ports(penstock_cluster):
    cluster = penstock_cluster(2)
    write(cluster.bucket.url, 0, 40)
    url = cluster.bucket.url
    for node in cluster.nodes:
        node.restart()
    assert cluster.bucket.url == url
    check_documents(url, 40)


def test_vbuckets_move_and_nodes_leave_and_return(penstock_cluster):
    cluster = penstock_cluster(2)
    bucket = cluster.bucket
    write(bucket.url, 0, 40)
    bucket.remove_node(0)
    assert {bucket.find_owner(vbucket) for vbucket in range(bucket.vbuckets)} == {1}
    write(bucket.url, 40, 60)
    bucket.move(range(4), to=0)
    assert [bucket.find_owner(vbucket) for vbucket in range(5)] == [0, 0, 0, 0, 1]
    check_documents(bucket.url, 60)
    served = cluster.nodes[1].call(lambda node: node.buckets[bucket.name].cluster_map.content)
    assert {each["services"]["mgmt"] for each in served["nodesExt"]} == {node.http_port for node in cluster.nodes}


def test_failover_loses_the_changes_after_the_last_copy(penstock_cluster):
    cluster = penstock_cluster(2)
    bucket = cluster.bucket
    write(bucket.url, 0, 40)
    bucket.replicate()
    write(bucket.url, 40, 80)
    cluster.nodes[1].stop()
    result = bucket.fail_over(1)
    assert (len(result.promoted), result.lost) == (bucket.vbuckets // 2, ())
    kept = asyncio.run(read_documents(bucket.url))
    assert {b"k%d" % number for number in range(40)} < kept < {b"k%d" % number for number in range(80)}
    with pytest.raises(UsageError, match="node 1 was failed over while it was stopped, and cannot start again"):
        cluster.nodes[1].start()


def test_replicas_go_to_nodes_of_the_map(penstock_cluster):
    cluster = penstock_cluster(3)
    bucket = cluster.bucket
    write(bucket.url, 0, 40)
    bucket.replicate()
    bucket.fail_over(1)  # it runs on, and is on the map no longer
    bucket.replicate()
    cluster.nodes[0].stop()
    assert bucket.fail_over(0).lost == ()
    check_documents(bucket.url, 40)


@in_loop
async def write_durably(url, first, behind):
    async with penstock.connect(f"{url}?operationTimeout={PATIENCE:g}") as bucket:
        for number in range(first, behind):
            await bucket.upsert(f"k{number}", b"v", durability="majority")


def test_kept_replicas_lose_no_change_of_a_lost_node(penstock_cluster):
    cluster = penstock_cluster(3, replicas=1)
    bucket = cluster.bucket
    write_durably(bucket.url, 0, 20)
    write(bucket.url, 20, 60)
    bucket.replicate()
    cluster.nodes[1].stop()
    result = bucket.fail_over(1)
    assert (result.lost, result.risks) == ((), {})
    check_documents(bucket.url, 60)


def test_replicas_follow_moves_restarts_and_new_buckets(penstock_cluster):
    cluster = penstock_cluster(3, replicas=1)
    bucket = cluster.bucket
    bucket.move(range(8), to=2)
    bucket.remove_node(0)
    write_durably(bucket.url, 0, 20)
    bucket.move(range(4), to=0)
    cluster.nodes[2].restart()
    write_durably(bucket.url, 20, 40)
    check_documents(bucket.url, 40)
    bucket.recreate()
    write_durably(bucket.url, 0, 20)
    check_documents(bucket.url, 20)


def test_faults_of_the_proxies_hinder_no_change_of_the_cluster(penstock_cluster):
    cluster = penstock_cluster(3, replicas=1)
    bucket = cluster.bucket
    write_durably(bucket.url, 0, 20)
    for node in cluster.nodes:
        node.proxy.black_hole()
    bucket.move(range(4), to=2)
    bucket.replicate()
    assert bucket.fail_over(0).lost == ()
    cluster.heal()
    assert {bucket.find_owner(vbucket) for vbucket in range(bucket.vbuckets)} == {1, 2}
    check_documents(bucket.url, 20)


async def read_documents(url):
    async with penstock.connect(url) as bucket:
        return {change.key for change in await read_all(bucket)}


@in_loop
async def follow_rollback(bucket, url):
    async with penstock.connect(url) as client:
        await client.upsert_many((f"k{number}", b"v") for number in range(20))
        async with await client.stream(vbuckets=[0]) as stream:
            changes = stream.changes()
            high = (await client.high_seqnos())[0]
            received = [await anext(changes) for _ in range(high)]
            await asyncio.to_thread(bucket.rollback, 0, 1)
            rollback = await anext(changes)
    assert [change.seqno for change in received] == [*range(1, high + 1)]
    assert (rollback.event, rollback.vbucket) == ("rollback", 0)


def test_consumer_receives_a_rollback(penstock_bucket):
    follow_rollback(penstock_bucket, penstock_bucket.url)


def test_recreated_bucket_is_empty_and_has_another_uuid(penstock_bucket, penstock_node):
    def read_uuid():
        return penstock_node.node.buckets[penstock_bucket.name].uuid

    write(penstock_bucket.url, 0, 20)
    before = read_uuid()
    penstock_bucket.recreate()
    assert read_uuid() != before
    check_documents(penstock_bucket.url, 0)


def test_example_project_passes(pytester):
    result = run_tests(pytester, EXAMPLE.read_text())
    result.assert_outcomes(passed=3)
