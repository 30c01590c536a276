"""Keys of a terminal, one by one, while the event loop runs."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def reading_keys(handle: Callable[[str], None]) -> Iterator[None]:
    """Call a function with each key while the block runs. Nothing happens if standard input is no terminal.

    Args:
        handle: receives the key, on the event loop.
    """
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = os.read(descriptor, 64)
        if not data:  # the terminal was closed
            loop.remove_reader(descriptor)
        for key in data.decode("utf-8", "replace"):
            handle(key)

    tty.setcbreak(descriptor)  # Ctrl-C still sends SIGINT
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
