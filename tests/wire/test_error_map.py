"""The meanings of statuses, as JSON."""

import json

import pytest

from penstock.wire.codec.statuses import Status
from penstock.wire.messages.error_map import ATTRIBUTES, MEANINGS, build_error_map


def test_every_status_has_an_entry():
    assert set(MEANINGS) == set(Status)
    assert json.loads(build_error_map(2))["errors"].keys() == {f"{status:x}" for status in Status}


@pytest.mark.parametrize("version", [1, 2])
def test_entries(version):
    entries = json.loads(build_error_map(version))["errors"]
    for status in Status:
        entry = entries[f"{status:x}"]
        assert entry["name"] == status.name
        assert entry["desc"], status
        assert entry["attrs"], status
        assert set(entry["attrs"]) <= ATTRIBUTES, status
        assert len(entry["attrs"]) == len(set(entry["attrs"])), status


def test_success_entry_has_success_attribute():
    successes = {status.name for status, (_, attributes) in MEANINGS.items() if "success" in attributes.split()}
    assert successes == {"SUCCESS", "RANGE_SCAN_COMPLETE", "SUBDOC_SUCCESS_DELETED"}


@pytest.mark.parametrize(("asked", "version"), [(1, 1), (2, 2), (3, 2), (0xFFFF, 2)])
def test_newest_supported_form_is_sent(asked, version):
    found = json.loads(build_error_map(asked))
    assert (found["version"], found["revision"]) == (version, 2)
    attributes = {name for entry in found["errors"].values() for name in entry["attrs"]}
    assert ({"rate-limit", "system-constraint"} <= attributes) == (version == 2)
    assert ({"rate-limit", "system-constraint"} & attributes == set()) == (version == 1)


def test_form_0_is_refused():
    with pytest.raises(ValueError, match="version 0, expected 1 or more"):
        build_error_map(0)
