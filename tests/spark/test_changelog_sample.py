"""The sample of a changelog that all inferred tables of a merge share."""

from typing import Any

import pytest

from penstock.spark import Lake
from penstock.spark.lake.changelog import changelog_sample
from penstock.spark.lake.changelog.changelog_sample import ChangelogSample
from tests.spark.lakes import append, row

NAMES: dict[int, dict[str, Any]] = {
    number: {"collection_id": 8 + number, "scope": "shop", "collection": f"part{number}"} for number in range(3)
}


def rows(batch, count=30):
    return [
        row(n % 64, 100 * batch + n, b"k%d" % n, b'{"part": %d, "batch": %d}' % (n % 3, batch), **NAMES[n % 3])
        for n in range(count)
    ]


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    for batch in range(3):
        append(lake, batch, rows(batch))
    return lake


def test_each_collection_has_values_of_its_documents(lake):
    sample = ChangelogSample(lake, 1000, 64)
    for number in range(3):
        found = [value for value in sample.find_values(None, ("shop", f"part{number}")) if value is not None]
        expected = [each["value"] for batch in range(3) for each in rows(batch) if each["collection_id"] == 8 + number]
        assert sorted(found) == sorted(expected)
    assert sample.find_values(None, ("shop", "part")) == ()
    assert sample.find_values(None, ("_default", "_default")) == ()


def test_only_mutations_after_the_position_count(lake):
    changelog = lake.changelog_table.open()
    position = (lake.changelog_table.read_id(changelog), changelog.version())
    assert ChangelogSample(lake, 1000, 64).find_values(position, ("shop", "part0")) == ()
    append(lake, 3, [row(1, 900, b"k", b'{"new": 1}', **NAMES[0]), row(1, 901, b"l", event="deletion", **NAMES[1])])
    append(lake, 4, [row(2, 902, b"k", b'{"default": 1}')])
    sample = ChangelogSample(lake, 1000, 64)
    assert sample.find_values(position, ("shop", "part0")) == [b'{"new": 1}']
    assert sample.find_values(position, ("shop", "part1")) == ()
    assert sample.find_values(position, ("_default", "_default")) == [b'{"default": 1}']


def test_all_collections_share_one_read(lake):
    sample = ChangelogSample(lake, 1000, 64)
    assert sample.find_values(None, ("shop", "part0"))
    for path in lake.changelog_table.path.rglob("vbucket_range=*/*.parquet"):
        path.unlink()
    assert sample.find_values(None, ("shop", "part2"))


def test_values_are_few_and_spread(lake, monkeypatch):
    append(lake, 3, [row(1, 1000 + n, b"k%d" % n, b'{"n": %d}' % n, **NAMES[0]) for n in range(1000)])
    changelog = lake.changelog_table.open()
    position = (lake.changelog_table.read_id(changelog), changelog.version() - 1)
    found = ChangelogSample(lake, 11, 64).find_values(position, ("shop", "part0"))
    assert (len(found), found[0], found[-1]) == (11, b'{"n": 0}', b'{"n": 999}')
    monkeypatch.setattr(changelog_sample, "SAMPLE_BYTES", 100)
    found = ChangelogSample(lake, 1000, 64).find_values(position, ("shop", "part0"))
    assert 1 <= len(found) <= 12
