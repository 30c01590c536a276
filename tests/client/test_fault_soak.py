"""The soak of a consumer runs, and notices growing memory. Its duration here is too short for a judgement."""

import re
import subprocess
import sys

import pytest

from tests.client.fault_soak import find_growth
from tests.patience import PATIENCE


@pytest.mark.process
@pytest.mark.long
def test_short_soak_holds_its_rules():
    options = ["--minutes", "0.1", "--rate", "500", "--fault-seconds", "0.5", "--growth", "1000"]
    command = [sys.executable, "-m", "tests.client.fault_soak", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^\d+ changes written, \d+ received, \d+ faults, ", done.stdout, re.MULTILINE)


def test_growth_is_measured_behind_the_start():
    assert find_growth([10.0, 50.0, *[100.0] * 8]) == 0
    assert find_growth([10.0, 50.0, *[100.0] * 6, 110.0, 110.0]) == pytest.approx(10)
