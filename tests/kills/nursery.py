"""A process that has imported what a writer needs, and becomes one by forking whenever it is told to.

So a life begins within milliseconds. Each line on stdin is a Life as JSON. On stdout comes `pid N` from the writer,
then what it says, and `end N` with its exit status, which of a killed one is -9.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

from tests.kills.writer import Doom, Life, write


def _give_birth(said: str) -> None:
    path, plan, seed, number, doom = json.loads(said)
    pid = os.fork()
    if not pid:
        os.write(1, b"pid %d\n" % os.getpid())
        try:
            write(Life(path, plan, seed, number, doom and Doom(*doom)))
        finally:  # it never comes to an end by itself
            os.write(1, traceback.format_exc().encode())
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    os.write(1, b"end %d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    for line in sys.stdin:
        _give_birth(line)
