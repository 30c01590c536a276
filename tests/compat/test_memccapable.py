"""libmemcached's own test of servers: what it asks of the binary protocol, a node does as memcached does."""

import re
import subprocess

from tests.compat.installed import program, shared_libraries
from tests.patience import PATIENCE

TESTS = 27


def test_memccapable_passes(open_node):
    command = [program("memccapable"), "-b", "-v", "-t", "10", "-h", "127.0.0.1", "-p", str(open_node.kv_port)]
    done = subprocess.run(
        command, env=shared_libraries(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    said = done.stdout + done.stderr
    assert "FAIL" not in said, said
    assert len(re.findall(r"^binary \w+ +\[pass\]$", said, re.MULTILINE)) == TESTS, said
    assert done.returncode == 0
