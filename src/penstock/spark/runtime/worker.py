"""Starts a Python process of Spark in place of `python -m MODULE ARGUMENTS`, with two differences.

Spark puts archives of pyspark's sources in front of the path. They have no compiled modules, so each process would
first compile pyspark for a second. Each micro-batch starts such a process. So the modules come from the installed
package instead.

Java gives up a process if the query was stopped or the task was cancelled. Such a process then ends without the
traceback of its broken pipe.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Callable
from typing import Any

_ARCHIVE = re.compile(r"/python/lib/(pyspark|py4j-.*-src)\.zip$")
_PIPE_ERRORS = (BrokenPipeError, ConnectionResetError, EOFError)


def main() -> None:
    """Run the module that the arguments name, as `python -m` does."""
    dash_m, module, *arguments = sys.argv[1:]
    assert dash_m == "-m", sys.argv
    sys.path[:] = [entry for entry in sys.path if not _ARCHIVE.search(entry)]
    sys.argv = [module, *arguments]
    if module == "pyspark.daemon":
        from pyspark import daemon

        daemon.worker = _silence_given_up(daemon.worker)
        daemon.manager()
        return
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except _PIPE_ERRORS:
        os._exit(1)  # not through the interpreter's end, which would try to write once more


def _silence_given_up(worker: Callable[..., int]) -> Callable[..., int]:
    def quiet(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except _PIPE_ERRORS:
            return 1

    return quiet


if __name__ == "__main__":
    main()
