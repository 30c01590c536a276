"""Couchbase's Java SDK."""

import subprocess

import pytest

from tests.compat.installed import make_java_command
from tests.patience import PATIENCE

ACTS = ["documents", "durability", "parts", "collections", "buckets", "transactions"]


@pytest.mark.parametrize("place", ["node", "durable_node"])
def test_java_sdk_session_passes(request, place):
    node = request.getfixturevalue(place)
    command = [*make_java_command("Sdk"), node.url, node.user, node.password, "default"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout.split(), done.returncode) == (ACTS, 0), done.stderr
