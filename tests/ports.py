"""Ports for servers that a test starts in a moment."""

import random
import socket
from contextlib import ExitStack
from itertools import islice

_BELOW_EPHEMERAL = range(20_000, 32_000)
"""Linux takes the ports of outgoing connections from 32768 on. One of those could be taken before the server has it."""


def free_ports(count: int) -> list[int]:
    """Return free ports of 127.0.0.1."""
    with ExitStack() as stack:
        chosen = random.SystemRandom().sample(_BELOW_EPHEMERAL, 100)
        return [*islice((port for port in chosen if _is_free(stack, port)), count)]


def _is_free(stack: ExitStack, port: int) -> bool:
    """Return whether a port is free, and hold a free one until the stack is closed."""
    try:
        stack.enter_context(socket.create_server(("127.0.0.1", port)))
    except OSError:
        return False
    return True
