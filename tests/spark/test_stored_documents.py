"""Small files that threads and processes replace at the same moment."""

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from penstock.client.positions.synced_file import replace_file
from penstock.spark.storage.stored_documents import create_document, replace_document
from tests.patience import PATIENCE

WRITERS = 8


@pytest.mark.parametrize(
    "replace", [replace_document, lambda path, text: replace_file(path, text.encode())], ids=["lake", "positions"]
)
def test_threads_replace_a_file_at_once(tmp_path, replace):
    barrier, path = Barrier(WRITERS), tmp_path / "state.json"

    def write(writer):
        text = json.dumps([writer] * 2_000)
        for _ in range(25):
            barrier.wait(PATIENCE)
            try:
                replace(path, text)
            except OSError:
                barrier.abort()  # the others need not wait
                raise
            found = json.loads(path.read_text())
            assert len(found) == 2_000
            assert len(set(found)) == 1

    with ThreadPoolExecutor(WRITERS) as pool:
        for task in [pool.submit(write, writer) for writer in range(WRITERS)]:
            task.result(PATIENCE)
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_one_of_several_threads_creates_a_file(tmp_path):
    barrier, path = Barrier(WRITERS), tmp_path / "metadata"

    def create(writer):
        barrier.wait(PATIENCE)
        return create_document(path, str(writer))

    with ThreadPoolExecutor(WRITERS) as pool:
        created = list(pool.map(create, range(WRITERS)))
    assert sorted(created) == [False] * (WRITERS - 1) + [True]
    assert path.read_text() == str(created.index(True))
    assert [each.name for each in tmp_path.iterdir()] == ["metadata"]
