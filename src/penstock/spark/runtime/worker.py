"""Starts a Python process of Spark's in the place of `python -m MODULE ARGUMENTS`, with two differences.

Spark puts archives of pyspark's sources in front of the path. They hold nothing compiled, so that each process, one for
every micro-batch among them, would compile pyspark for a second first: the modules are taken from where they were
installed. And a process that Java has given up, because the query was stopped or its task cancelled, ends without the
traceback of the pipe that broke when it wanted to say so.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Callable
from typing import Any

_ARCHIVE = re.compile(r"/python/lib/(pyspark|py4j-.*-src)\.zip$")
_GIVEN_UP = (BrokenPipeError, ConnectionResetError, EOFError)


def main() -> None:
    dash_m, module, *arguments = sys.argv[1:]
    assert dash_m == "-m", sys.argv
    sys.path[:] = [entry for entry in sys.path if not _ARCHIVE.search(entry)]
    sys.argv = [module, *arguments]
    if module == "pyspark.daemon":
        from pyspark import daemon

        daemon.worker = _quietly(daemon.worker)
        daemon.manager()
        return
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except _GIVEN_UP:
        os._exit(1)  # not through the interpreter's end, which would try to write once more


def _quietly(worker: Callable[..., int]) -> Callable[..., int]:
    def quiet(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except _GIVEN_UP:
            return 1

    return quiet


if __name__ == "__main__":
    main()
