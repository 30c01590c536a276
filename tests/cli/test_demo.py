"""The demo as `make demo` runs it: it ends with tables equal to the bucket, and Ctrl-C leaves nothing running."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.cli.terminals import run_on_terminal
from tests.patience import PATIENCE
from tests.waiting import wait_readable

pytestmark = pytest.mark.spark

COMMAND = [sys.executable, "-m", "penstock", "demo"]
MARK = "PENSTOCK_TEST_OF_DEMO"


def find_marked_processes(value: str) -> list[int]:
    """Return the ids of the processes with our mark in their environment: the demo and all processes it started."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"{MARK}={value}".encode() in environment:
                found.append(int(process.name))
    return found


def test_demo_ends_with_equal_tables(tmp_path):
    documents = tmp_path / "own.jsonl"
    documents.write_text("".join(json.dumps({"id": f"é {n}", "doc": {"n": n}}) + "\n" for n in range(700)))
    lake = tmp_path / "lake"
    options = ["--file", documents, "--key", "id", "--value", "doc", "--seconds", "3", "--rate", "200", "--lake", lake]
    ran = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "700 documents loaded" in ran.stdout
    assert "600 changes" in ran.stdout
    assert "equal to the bucket key by key" in ran.stdout
    assert (lake / "current" / "_delta_log").is_dir()
    assert "SELECT _batch, count(*) FROM documents GROUP BY _batch" in ran.stdout
    found = DeltaTable(str(lake / "tables" / "documents")).to_pyarrow_table()
    assert found.num_rows == len(set(found["key"].to_pylist())) == 700
    assert {f"é {n}" for n in found["n"].drop_null().to_pylist()} <= {*found["key"].to_pylist()}


def test_demo_ends_with_a_query_of_columns(tmp_path):
    options = ["--count", "300", "--seconds", "1", "--lake", tmp_path / "lake"]
    ran = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rest = ran.stdout.partition("SELECT style, avg(abv) FROM beers GROUP BY style")[2]
    assert "in DuckDB and in Spark SQL" in rest
    found = {
        style: {*values} for style, *values in re.findall(r"^ +(\S.*\S)  (\d+\.\d\d)  (\d+\.\d\d)$", rest, re.MULTILINE)
    }
    beers = DeltaTable(str(tmp_path / "lake" / "tables" / "beers")).to_pyarrow_table()
    expected = beers.group_by("style").aggregate([("abv", "mean")]).sort_by("style").slice(0, 5).to_pylist()
    assert found == {line["style"]: {f"{line['abv_mean']:.2f}"} for line in expected}


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the demo's processes through /proc")
@pytest.mark.parametrize("moment", ["documents loaded", "changelog"], ids=["while Spark starts", "while it follows"])
def test_interrupted_demo_leaves_no_process_behind(moment):
    value = f"{os.getpid()}-{time.monotonic_ns()}"
    with subprocess.Popen(
        [*COMMAND, "--count", "500", "--seconds", "120"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, MARK: value, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        seen = b""
        while moment.encode() not in seen:
            ready = wait_readable([demo.stdout], 200)
            chunk = os.read(demo.stdout.fileno(), 65536) if ready else b""
            assert chunk, seen
            seen += chunk
        os.killpg(demo.pid, signal.SIGINT)
        rest, _ = demo.communicate(timeout=PATIENCE)
        assert demo.returncode == 130, seen + rest
        assert b"Traceback" not in rest, rest
    deadline = time.monotonic() + PATIENCE
    while left := find_marked_processes(value):
        assert time.monotonic() < deadline, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
        select.select([], [], [], 0.1)


def test_tour_waits_for_enter_and_heals_the_tables():
    with run_on_terminal([*COMMAND, "--tour", "--count", "300"], {}) as terminal:
        steps = []
        for _ in range(6):
            steps.append(terminal.read_until("Enter goes on"))
            terminal.write("\n")
        rest = terminal.read_all()
        assert terminal.process.returncode == 0, rest
    assert [f"Step {number} of 6" in shown for number, shown in enumerate(steps, 1)] == [True] * 6
    assert "300 documents loaded" in steps[1]
    assert "270 documents loaded" in steps[4]
    assert re.search(r" of \d+ vbuckets, as rows of the changelog", steps[4])
    assert "270 documents, equal to the bucket key by key" in rest


def test_interrupted_tour_ends_its_node():
    value = f"{os.getpid()}-{time.monotonic_ns()}"
    with run_on_terminal([*COMMAND, "--tour", "--count", "300"], {MARK: value}) as terminal:
        terminal.read_until("Enter goes on")
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_all()
        assert terminal.process.returncode == 130
    assert find_marked_processes(value) == []
