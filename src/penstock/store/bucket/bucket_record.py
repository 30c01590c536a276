"""The record of a bucket, `bucket.json`: everything that is stored beside its changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.errors import TemporaryFailure
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.durable_log import DurableLog
from penstock.store.log.change_log import Log
from penstock.store.recovery import bucket_directory


class BucketRecord:
    """The content of `bucket.json`. The record of a bucket in memory is only in memory.

    Args:
        log: the log of the bucket. The inventory of a durable log names the record's revision.
        directory: the directory of the bucket; None in memory.
        content: the content of `bucket.json`; None in memory.

    Attributes:
        content: all members of the JSON object.
    """

    def __init__(self, log: Log, directory: Directory | None = None, content: Mapping[str, Any] | None = None) -> None:
        self._log = log
        self._directory = directory
        self.content: dict[str, Any] = {"properties": {}} if content is None else dict(content)

    @property
    def properties(self) -> Mapping[str, Any]:
        """The object that `set_properties` stored last; at first it is empty."""
        return dict(self.content["properties"])

    def set_properties(self, properties: Mapping[str, Any]) -> None:
        """Store a JSON object for the caller, for example the bucket's definition on a node.

        Raises:
            TemporaryFailure: the disk does not accept the object.
        """
        self.write("properties", json.loads(json.dumps(properties)))

    def write_format(self) -> None:
        """Update the format in the file to the newest one.

        Raises:
            TemporaryFailure: the disk does not accept the record.
        """
        if self.content["format"] != bucket_directory.FORMAT:
            self.write("format", bucket_directory.FORMAT)

    def write(self, name: str, value: object) -> None:
        """Add or replace one member of the record, and write the record to disk.

        Raises:
            TemporaryFailure: the disk does not accept the record; nothing was changed.
        """
        content = {**self.content, name: value, "revision": self.content.get("revision", 0) + 1}
        if self._directory is not None:
            try:
                bucket_directory.write_record(self._directory, content)
            except OSError as error:
                raise TemporaryFailure(f"the disk does not accept writes: {error.strerror or error}") from error
        self.content = content
        if isinstance(self._log, DurableLog):
            self._log.inventory.revision = content["revision"]
