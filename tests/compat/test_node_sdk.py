"""Couchbase's own client for Node.js."""

import subprocess
from pathlib import Path

import pytest

from tests.compat.installed import npm_package, program

SESSION = Path(__file__).parent / "npm" / "session.js"
ACTS = ["documents", "parts", "collections", "together"]


@pytest.mark.timeout(120)
def test_a_session(node):
    command = [program("node"), str(SESSION), node.url, node.user, node.password]
    environment = npm_package("couchbase")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout.split(), done.returncode) == (ACTS, 0), done.stderr
