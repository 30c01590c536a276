"""Couchbase's own client for Node.js."""

import subprocess
from pathlib import Path

from tests.compat.installed import npm_package, program
from tests.patience import PATIENCE

SESSION = Path(__file__).parent / "npm" / "session.js"
ACTS = ["documents", "parts", "collections", "together"]


def test_node_sdk_session_passes(node):
    command = [program("node"), str(SESSION), node.url, node.user, node.password]
    environment = npm_package("couchbase")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout.split(), done.returncode) == (ACTS, 0), done.stderr
