"""`penstock compact`: the files of a bucket get smaller, on a running node and on a stopped one."""

import pytest

from penstock import Node
from tests.node.wire_client import connected, until_stat

KEYS = 50


@pytest.fixture
def kept(tmp_path):
    """A data directory with a bucket, in which most changes are superseded."""
    with Node.running(["beer"], 4, data_dir=tmp_path) as node:
        overwrite(node)
    return tmp_path


def overwrite(node):
    with connected(node, "beer") as client:
        for turn in range(20):
            for number in range(KEYS):
                client.set(b"key-%d" % number, b"%d" % turn * 500)
        until_stat(client, "ep_queue_size", 0)


def bytes_in(directory):
    return sum(path.stat().st_size for path in directory.iterdir())


def test_running_node_is_compacted(tmp_path, run):
    with Node.running(["beer"], 4, data_dir=tmp_path) as node:
        overwrite(node)
        done = run("compact", "--url", node.url("beer"), "--json")
        assert (done.code, done.err) == (0, "")
        assert done.json["bucket"] == "beer"
        assert done.json["bytes_after"] < done.json["bytes_before"] / 2
        assert done.json["bytes_after"] == bytes_in(tmp_path / "beer")
        assert run("compact", "--url", node.url("beer")).out.startswith("beer: ")


def test_files_of_a_stopped_node_are_compacted(kept, run):
    before = bytes_in(kept / "beer")
    done = run("compact", "--data-dir", kept, "--bucket", "beer", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json == {"bucket": "beer", "bytes_before": before, "bytes_after": bytes_in(kept / "beer")}
    assert done.json["bytes_after"] < before / 2
    assert run("compact", "--data-dir", kept, "--bucket", "beer").out.endswith(" bytes.\n")
    with Node.running(["beer"], 4, data_dir=kept) as node, connected(node, "beer") as client:
        assert client.get(b"key-0").value == b"19" * 500
        assert client.stats()["curr_items"] == str(KEYS)


def test_impossible_compaction_is_refused(kept, run, node):
    def read_refusal(*arguments):
        done = run("compact", *arguments)
        assert (done.code, done.out) == (2, "")
        return done.err

    assert "cannot be compacted: it is kept in memory" in read_refusal("--url", node.url("beer"))
    assert "no bucket 'wine' in" in read_refusal("--data-dir", kept, "--bucket", "wine")
    assert "no bucket 'default' in" in read_refusal("--data-dir", kept)
    assert "--bucket needs --data-dir" in read_refusal("--bucket", "beer")
    with Node.running(["beer"], 4, data_dir=kept):
        assert "in use by process" in read_refusal("--data-dir", kept, "--bucket", "beer")
