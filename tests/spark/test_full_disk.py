"""A pipeline on a disk that becomes full: its tables stay whole, and the next run continues."""

import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from penstock.errors import DiskFull, Error
from penstock.spark.storage.full_disk import translate_full_disk
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]


def run_in_namespace(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that may mount file systems, which only it and its children see."""
    return subprocess.run(
        [*NAMESPACE, *command], cwd=ROOT, timeout=PATIENCE, check=False, capture_output=True, text=True
    )


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.long
def test_full_disk_damages_nothing_and_the_next_run_continues(tmp_path):
    if which("unshare") is None or run_in_namespace("mount", "-t", "tmpfs", "tmpfs", str(tmp_path)).returncode:
        pytest.skip("this machine does not allow user namespaces with mounts (unshare -Urm)")
    done = run_in_namespace(sys.executable, "-m", "tests.spark.full_disk", str(tmp_path))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device", "/lake/_run.json"),
        Error("Spark failed: java.io.IOException: Disk quota exceeded"),
        Error("/lake/changelog did not take a commit: Generic error: No space left on device (os error 28)"),
    ],
)
def test_every_error_of_a_full_disk_is_the_same_sentence(error):
    sentence = r"^a disk is full while /lake is written \((No space|Disk quota).*: make room"
    with pytest.raises(DiskFull, match=sentence), translate_full_disk("/lake"):
        raise error


def test_other_errors_stay_as_they_are():
    with pytest.raises(FileNotFoundError), translate_full_disk("/lake"):
        raise FileNotFoundError(2, "No such file or directory", "/lake/_run.json")
