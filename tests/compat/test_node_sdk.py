"""Couchbase's Node.js SDK."""

import subprocess
from pathlib import Path

from tests.compat.installed import find_program, make_npm_environment
from tests.patience import PATIENCE

SESSION = Path(__file__).parent / "npm" / "session.js"
ACTS = ["documents", "parts", "collections", "together"]


def test_node_sdk_session_passes(node):
    command = [find_program("node"), str(SESSION), node.url, node.user, node.password]
    environment = make_npm_environment("couchbase")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout.split(), done.returncode) == (ACTS, 0), done.stderr
