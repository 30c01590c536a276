"""Pages that call a feature missing are held against the features that exist."""

import re
from pathlib import Path

import pytest

from penstock.spark.storage.object_path import SCHEMES

DOCS = Path(__file__).parents[1] / "docs"

MISSING = {
    "transforms, converters and schemas of Kafka Connect": [r"kafka connect\b"],
    "filters in Java": [r"\bjava filters?", r"filters? in java"],
    "every historical version, in Spark (`change_history` of the client reads them)": [
        r"changeHistory(?!.*not in Spark)"
    ],
    "sources for queries, Columnar and Analytics": ["columnar", "analytics"],
    "RDD functions for documents": [r"\brdds?\b"],
    "Spark before 4.2": [r"spark (3|4\.[01])\b"],
    "the other sinks of its family (Elasticsearch, SQL, MongoDB, Cassandra, Redis)": [
        "elasticsearch",
        "mongodb",
        "cassandra",
        "redis",
    ],
    "a JVM library": [r"\bjvm\b"],
    "manual flow control": ["manual flow"],
    "Kafka Connect": [r"kafka connect\b"],
    "Debezium Server's sinks": ["debezium server"],
    "the outbox router": ["outbox"],
    "a schema registry": ["schema registry", "schema_registry"],
}
"""Claim -> patterns that the pages of existing features would match if the feature existed."""

FEATURES = ["features.md", "options.md", "api.md", "cli.md", "pipelines.md", "howto/kafka.md", "howto/groups.md"]
"""The pages that list the existing features. Tests hold them against the code."""


def find_feature(patterns: list[str]) -> list[str]:
    """Return the pages that list a feature."""
    return [
        name
        for name in FEATURES
        if any(re.search(pattern, (DOCS / name).read_text(), re.IGNORECASE) for pattern in patterns)
    ]


def list_claims() -> list[str]:
    """Return the items of all lists with the heading `Missing here:`."""
    found = []
    for page in DOCS.rglob("*.md"):
        for part in re.findall(r"^Missing here:\n\n((?:- .*\n(?:  .*\n)*)+)", page.read_text(), re.MULTILINE):
            found += [" ".join(item.split()) for item in re.findall(r"^- ((?:.|\n  )*)", part, re.MULTILINE)]
    return found


def test_each_claim_has_a_row():
    assert set(list_claims()) == MISSING.keys()


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_claims_are_lists(page):
    """A sentence would not be held against anything."""
    assert not re.search(r"(?i)missing here:? [a-z]|also missing", page.read_text())


@pytest.mark.parametrize("claim", MISSING)
def test_missing_feature_does_not_exist(claim):
    assert not find_feature(MISSING[claim])


@pytest.mark.parametrize("existing", [["kafka sink", r"kafka\]"], ["mitigateRollback"], [r"\bgroups\b"], ["traces"]])
def test_feature_that_exists_is_found(existing):
    """Else no false claim would fail."""
    assert find_feature(existing)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_no_page_excludes_a_place_that_can_hold_a_lake(page):
    names = {"s3": "S3|object stores?", "abfss": "Azure|object stores?", "gs": "Google|object stores?"}
    possible = "|".join(names[scheme] for scheme in SCHEMES)
    assert not re.search(rf"(?i)\b({possible})\b[^.|]*cannot hold a lake", page.read_text())
