"""Waits for files and sockets."""

import selectors
from collections.abc import Iterable
from typing import Any

__all__ = ["wait_readable"]


def wait_readable(files: Iterable[Any], seconds: float) -> list[Any]:
    """Return the files that can be read, empty after so many seconds without any.

    `select.select` refuses descriptors from 1024 on. Tests that end a bucket as a crash does leave descriptors open.
    """
    with selectors.DefaultSelector() as selector:
        for file in files:
            selector.register(file, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(seconds)]
