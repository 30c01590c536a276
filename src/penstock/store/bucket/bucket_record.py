"""What is written down of a bucket beside its changes: `bucket.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.errors import TemporaryFailure
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.durable_log import DurableLog
from penstock.store.log.change_log import Log
from penstock.store.recovery import bucket_directory

__all__ = ["BucketRecord"]


class BucketRecord:
    """What `bucket.json` says; of a bucket in memory it is kept in memory alone.

    Attributes:
        said: all of it.
    """

    def __init__(self, log: Log, directory: Directory | None = None, said: Mapping[str, Any] | None = None) -> None:
        self._log = log
        self._directory = directory
        self.content: dict[str, Any] = {"properties": {}} if said is None else dict(said)

    @property
    def properties(self) -> Mapping[str, Any]:
        """What `set_properties` was given last; at first there are none."""
        return dict(self.content["properties"])

    def set_properties(self, properties: Mapping[str, Any]) -> None:
        """Keep a JSON object for the caller. Raises TemporaryFailure where the disk does not take it."""
        self.write("properties", json.loads(json.dumps(properties)))

    def write_format(self) -> None:
        """Let the file have the newest format."""
        if self.content["format"] != bucket_directory.FORMAT:
            self.write("format", bucket_directory.FORMAT)

    def write(self, name: str, value: object) -> None:
        """Write down one thing more. Raises TemporaryFailure, with nothing changed, where the disk does not take it."""
        said = {**self.content, name: value, "revision": self.content.get("revision", 0) + 1}
        if self._directory is not None:
            try:
                bucket_directory.write_record(self._directory, said)
            except OSError as error:
                raise TemporaryFailure(f"the disk does not take it: {error.strerror or error}") from error
        self.content = said
        if isinstance(self._log, DurableLog):
            self._log.inventory.revision = said["revision"]
