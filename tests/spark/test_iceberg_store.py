"""Iceberg lakes in an object store: the tests of other lakes there, and a REST catalog whose answers are lost."""

import json

import pytest
from pyiceberg.utils.config import Config

from penstock.errors import Error, UsageError
from penstock.spark import Lake
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.pipeline.state.stopping import plan_removal, remove_tables
from tests.spark.lakes import TYPED, append, identities, read_typed_documents, row
from tests.spark.object_store import SECRET, FaultyProxy, list_objects, make_environment
from tests.spark.rest_catalog import serve_catalog
from tests.spark.test_object_store import (
    endpoint,
    network,
    place,
    test_lake_equals_a_local_lake_in_spite_of_faults,
    test_run_continues_after_a_crash_between_changelog_and_commit_log,
    test_second_run_takes_over_and_the_first_is_fenced,
)
from tests.spark.typed_readers import find_s3_properties, scan_table

__all__ = [
    "endpoint",
    "network",
    "place",
    "test_lake_equals_a_local_lake_in_spite_of_faults",
    "test_run_continues_after_a_crash_between_changelog_and_commit_log",
    "test_second_run_takes_over_and_the_first_is_fenced",
]
"""Tests of Delta lakes that hold for the lakes of this module too."""

pytestmark = [pytest.mark.process, pytest.mark.long]

TOKEN = "a-catalog-token-0123456789"


@pytest.fixture
def catalog(endpoint, network, tmp_path, monkeypatch):
    """Return the proxy between this process and the catalog, whose server reaches the store without faults."""
    monkeypatch.setenv("PYICEBERG_CATALOG__PENSTOCK__TOKEN", TOKEN)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    properties = find_s3_properties(make_environment(endpoint))
    with serve_catalog(tmp_path, TOKEN, properties) as uri, FaultyProxy.before(int(uri.rpartition(":")[2])) as proxy:
        yield proxy


@pytest.fixture
def lake(catalog, place):
    return Lake(place, "iceberg", f"http://127.0.0.1:{catalog.port}")


@pytest.mark.parametrize("fault", ["refuse", "fail", "throttle", "forget", "cut", "reset"])
def test_commits_have_one_effect_whatever_the_catalog_answers(catalog, lake, fault):
    remaining = [0]

    def choose(method, path, body):
        remaining[0] -= 1
        return fault if remaining[0] >= 0 else None

    catalog.choose = choose
    for batch in range(3):
        remaining[0] = 2
        assert append(lake, batch, [row(1, batch + 1, b"k%d" % batch, b"v")])
        assert not append(lake, batch, [row(1, batch + 1, b"k%d" % batch, b"v")])
        remaining[0] = 3
        TypedTable(lake, TYPED).merge()
    assert catalog.faults
    remaining[0] = 0
    assert identities(lake) == [(1, 0, seqno) for seqno in (1, 2, 3)]
    assert read_typed_documents(lake) == {(1, 0, b"k%d" % batch): b"v" for batch in range(3)}


def test_other_programs_find_the_tables_in_the_catalog(lake, place, capfd):
    append(lake, 0, [row(n % 64, n, b"k%d" % n, b'{"n": %d}' % n) for n in range(1, 100)])
    TypedTable(lake, TYPED).merge()
    found = Lake(place)  # the marker names format and catalog
    assert found.changelog_table.format == "iceberg"
    assert scan_table(found, "documents").select("n").collect()["n"].sort().to_list() == list(range(1, 100))
    objects = list_objects(place.key)
    assert json.loads(objects[f"{place.key}/_iceberg.json"]) == {"catalog": lake.catalog}
    for content in objects.values():
        assert TOKEN.encode() not in content
        assert SECRET.encode() not in content
    remove_tables(plan_removal(found, ["documents"]))
    assert TypedTable.find(found, "documents") is None
    TypedTable(found, TYPED).merge()
    assert scan_table(found, "documents").collect().height == 99
    remove_tables(plan_removal(found, []))
    append(lake, 0, [row(1, 1, b"k", b"v")])
    assert identities(lake) == [(1, 0, 1)]


def test_a_catalog_of_one_machine_is_refused(place):
    with pytest.raises(UsageError, match=r"and has no catalog; expected catalog = the http or https URI of a REST"):
        Lake(place, "iceberg").changelog_table.open()
    with pytest.raises(UsageError, match=r"has the catalog sqlite:////c.db, a file of one machine; expected catalog"):
        Lake(place, "iceberg", "sqlite:////c.db").changelog_table.open()


def test_a_catalog_that_stays_away_is_one_sentence(catalog, lake):
    catalog.choose = lambda method, path, body: "refuse"
    with pytest.raises(Error, match=r"the catalog http://127\.0\.0\.1:\d+ did not answer as expected \(\w+\)$"):
        append(lake, 0, [row(1, 1)])
