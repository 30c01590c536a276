"""The uuid of a node, in the file `node.json` of its data directory."""

import json

import pytest

from penstock.errors import StoreDamaged, StoreRefused
from penstock.node import Node
from penstock.node.server.node_uuid import keep_node_uuid
from penstock.store.disk.bucket_files import Directory
from tests.node.disks import BrokenDirectory, FullDirectory, ReadOnlyDirectory
from tests.node.wire_client import connected

UUID = "0123456789abcdef" * 2
OTHER = "f" * 32


def test_first_uuid_stays(tmp_path):
    directory = Directory(tmp_path / "new" / "node")
    assert keep_node_uuid(directory, UUID) == UUID
    assert keep_node_uuid(directory, OTHER) == UUID


def test_start_that_was_killed_while_it_wrote_is_no_first_start(tmp_path):
    (tmp_path / "node.json.new").write_text('{"uuid"')
    assert keep_node_uuid(Directory(tmp_path), UUID) == UUID
    assert keep_node_uuid(Directory(tmp_path), OTHER) == UUID


@pytest.mark.parametrize("kind", [FullDirectory, ReadOnlyDirectory, BrokenDirectory])
def test_uuid_that_cannot_be_stored_is_refused(tmp_path, kind):
    with pytest.raises(StoreRefused, match=r"cannot be written to"):
        keep_node_uuid(kind(tmp_path), UUID)
    assert not (tmp_path / "node.json").exists()


def change_uuid(text):
    return json.dumps({**json.loads(text), "uuid": OTHER})


@pytest.mark.parametrize(
    "damage", [change_uuid, lambda text: text[:-4], lambda text: "", lambda text: "[]", lambda text: '{"uuid": 5}']
)
def test_damaged_file_is_reported_with_its_remedy(tmp_path, damage):
    keep_node_uuid(Directory(tmp_path), UUID)
    path = tmp_path / "node.json"
    path.write_text(damage(path.read_text()))
    with (
        pytest.raises(StoreDamaged, match=r"node\.json: damaged, expected the uuid of the node\. Remove the file"),
        Node.running(["beer"], 4, data_dir=tmp_path),
    ):
        pass
    path.unlink()
    assert keep_node_uuid(Directory(tmp_path), OTHER) == OTHER


def test_directory_in_place_of_the_file_is_refused(tmp_path):
    (tmp_path / "node.json").mkdir()
    with pytest.raises(StoreRefused, match=r"node\.json: cannot be read: Is a directory"):
        keep_node_uuid(Directory(tmp_path), UUID)


def read_identity(node):
    with connected(node, "beer") as client:
        stats = client.stats("")
    return stats["node_uuid"], stats["start_id"]


def test_node_in_memory_has_another_uuid_at_each_start():
    found = []
    for _ in range(2):
        with Node.running(["beer"], 4) as node:
            found += read_identity(node)
    assert len({*found}) == 4
