"""The benchmarks that need external programs run without errors. Their times are not checked."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.installed import find_browser, find_go_program, find_program, make_java_command, require_package
from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent.parent
BENCHMARKS = [
    ("idle", ["--connections", "50", "--vbuckets", "16"], ["Penstock ", "Penstock, TLS ", "memcached, one thread "]),
    ("login", ["--logins", "20", "--together", "4", "--rounds", "1"], ["SCRAM-SHA512 ", "SCRAM-SHA1 ", "PLAIN "]),
    (
        "sdk",
        ["--operations", "50", "--tasks", "4", "--rounds", "1"],
        [
            "upsert, one after the other ",
            "get, 4 at a time ",
            "set by bmemcached, Penstock ",
            "by bmemcached, memcached ",
        ],
    ),
]


@pytest.mark.parametrize(("benchmark", "options", "rows"), BENCHMARKS, ids=[row[0] for row in BENCHMARKS])
def test_benchmark_runs(benchmark, options, rows):
    require_package("couchbase")
    require_package("bmemcached")
    find_program("memcached")
    run = [sys.executable, "-m", f"benchmarks.{benchmark}", *options]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    for row in rows:
        assert row in done.stdout


def test_benchmark_of_the_dashboard_runs():
    find_browser()
    options = ["--vbuckets", "16", "--streams", "3", "--seconds", "0.5"]
    run = [sys.executable, "-m", "benchmarks.dashboard", *options]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert [
        row for row in ("1 viewers ", "10 viewers ", "page while documents are stored ") if row not in done.stdout
    ] == []


def test_benchmark_of_consumers_counts_with_each_program():
    find_go_program("count")
    make_java_command("Count")
    options = ["--changes", "2000", "--rounds", "1", "--rates", "200", "--seconds", "0.5"]
    run = [sys.executable, "-m", "benchmarks.consumers", *options]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    for program in ("Penstock", "go-dcp", "java-dcp-client"):
        assert f"{program}, 2000 changes of 100 B" in done.stdout
        assert f"{program}, 200 SETs a second" in done.stdout
