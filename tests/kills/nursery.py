"""A process that has imported what its children need, and forks one whenever it is told to: within milliseconds.

Each line on stdin is what the child is to do, as JSON: a writer's Life, or where a node has its data. On stdout comes
`pid N` from the child, then what it says, and `end N` with its exit status, which of a killed one is -9.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from tests.kills.served import serve
from tests.kills.writer import Doom, Life, write


def _do(kind: str, arguments: list[Any]) -> None:
    if kind == "serve":
        serve(*arguments)
    else:
        path, plan, seed, number, doom = arguments
        write(Life(path, plan, seed, number, doom and Doom(*doom)))


def _give_birth(said: str) -> None:
    pid = os.fork()
    if not pid:
        os.write(1, b"pid %d\n" % os.getpid())
        try:
            _do(*json.loads(said))
        finally:  # it never comes to an end by itself
            os.write(1, traceback.format_exc().encode())
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    os.write(1, b"end %d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    for line in sys.stdin:
        _give_birth(line)
