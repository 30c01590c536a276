"""File systems of a test's own, in a process that alone sees them: they are gone with it, however it ends."""

import subprocess
from pathlib import Path

import pytest

from tests.patience import PATIENCE

__all__ = ["run_with_mounts"]

ROOT = Path(__file__).parents[2]
_UNSHARE = ["unshare", "--map-root-user", "--mount"]


def run_with_mounts(mounts: str, path: Path, command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command where `mounts`, a line of the shell, has been run before with `path` as $0.

    Skips the test where the system lets this user mount nothing, not even for itself.
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
