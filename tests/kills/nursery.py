"""A fork server: it has imported all modules that its children need, so it starts a child within milliseconds.

Each line on stdin starts a child. It is JSON: a writer's Life, or the arguments of a node. The output of each child is
`pid N`, then the child's own lines, and then `end N` with its exit status, which is -9 after SIGKILL.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from tests.kills.served import serve
from tests.kills.writer import KillPoint, Life, write


def _run_child(kind: str, arguments: list[Any]) -> None:
    if kind == "serve":
        serve(*arguments)
    else:
        path, plan, seed, number, kill_point = arguments
        write(Life(path, plan, seed, number, kill_point and KillPoint(*kill_point)))


def _fork_child(line: str) -> None:
    pid = os.fork()
    if not pid:
        os.write(1, b"pid %d\n" % os.getpid())
        try:
            _run_child(*json.loads(line))
        finally:  # reached only after an error: a child runs until it is killed
            os.write(1, traceback.format_exc().encode())
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    os.write(1, b"end %d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    for line in sys.stdin:
        _fork_child(line)
