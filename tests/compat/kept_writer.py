"""Writers that go on after errors, and know their acknowledged writes."""

from tests.compat.installed import require_package
from tests.node.serve_process import wait_for

require_package("couchbase")

from couchbase.exceptions import CouchbaseException

from penstock.errors import Error

__all__ = ["KeptWriter", "wait_for_more"]

MORE = 10


class KeptWriter:
    """Writes documents with new keys, one after the other, and goes on after errors.

    Attributes:
        name: begins the keys.
        written: the keys whose writes were acknowledged.
    """

    def __init__(self, name, upsert):
        self.name = name
        self.written: list[str] = []
        self._upsert = upsert

    def run(self, over):
        number = 0
        while not over.is_set():
            key = f"{self.name}-{number}"
            number += 1
            try:
                self._upsert(key)
            except (CouchbaseException, Error):
                continue  # it is not known whether the document was written
            self.written.append(key)


def wait_for_more(writers):
    """Wait until each writer has written some more documents."""
    known = [len(writer.written) for writer in writers]
    wait_for(
        lambda: all(len(writer.written) >= before + MORE for writer, before in zip(writers, known, strict=True)),
        "documents of all writers",
    )
