"""memccapable, libmemcached's test of servers: a node passes all its tests of the binary protocol."""

import re
import subprocess

from tests.compat.installed import find_program, make_library_environment
from tests.patience import PATIENCE

TESTS = 27


def test_memccapable_passes(open_node):
    command = [find_program("memccapable"), "-b", "-v", "-t", "10", "-h", "127.0.0.1", "-p", str(open_node.kv_port)]
    done = subprocess.run(
        command, env=make_library_environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    output = done.stdout + done.stderr
    assert "FAIL" not in output, output
    assert len(re.findall(r"^binary \w+ +\[pass\]$", output, re.MULTILINE)) == TESTS, output
    assert done.returncode == 0
