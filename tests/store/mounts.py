"""Runs commands that see file systems which a test mounts.

The mounts are in a namespace of that process alone, so they end with the process, even if it is killed.
"""

import subprocess
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
_UNSHARE = ["unshare", "--map-root-user", "--mount"]


def run_with_mounts(mounts: str, path: Path, command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command after `mounts`, a line of the shell that gets `path` as $0.

    Skips the test if the system does not allow this user to mount anything, not even in a namespace.
    """
    try:
        subprocess.run([*_UNSHARE, "true"], check=True, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nothing can be mounted here: {getattr(error, 'stderr', '') or error}")
    script = f'{mounts} && exec "$@"'
    return subprocess.run(
        [*_UNSHARE, "sh", "-c", script, str(path), *command],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
