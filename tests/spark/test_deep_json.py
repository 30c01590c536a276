"""JSON of many levels ends the process in pyarrow's reader, which must never get it. Each case has its own process."""

import signal
import subprocess
import sys

import pytest

from tests.patience import PATIENCE

pytestmark = pytest.mark.process

LEVELS = 200_000

READ = """
import sys
import pyarrow as pa
from penstock.spark.values import json_batches, json_columns
from penstock.spark.dependents import json_paths as paths
from penstock.spark.dependents.value_types import find_value_type

opening, closing, most, how = sys.argv[1].encode(), sys.argv[2].encode(), int(sys.argv[3]), sys.argv[4]
if most:
    json_batches.MAX_OPENED = most
deep = b'{"n":1,"d":' + opening * LEVELS + b"1" + closing * LEVELS + b"}"
values = pa.array([deep, *[b'{"n":1}'] * 200], pa.binary())
if how == "infer":
    assert json_columns.to_ddl(json_columns.infer(values)) == "`n` BIGINT"
elif how == "parse":
    columns, rest = json_columns.parse(values, json_columns.from_ddl("n BIGINT"))
    assert columns.field("n").to_pylist()[1:] == [1] * 200
    assert (rest[0].as_py().encode(), rest.null_count) == (deep, 200)
else:
    found = paths.extract_values(values, ("n",), find_value_type("long"))
    assert found.values.to_pylist() == [None] + [1] * 200
    assert found.misfits[0].as_py().encode() == deep[:100]
print("read")
""".replace("LEVELS", str(LEVELS))

ARRAYS, OBJECTS = ("[", "]"), ('{"a":', "}")


def read(brackets: tuple[str, str], how: str, most: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", READ, *brackets, str(most), how]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize("how", ["infer", "parse", "extract"])
@pytest.mark.parametrize("brackets", [ARRAYS, OBJECTS])
def test_deep_json_is_not_given_to_arrow(brackets: tuple[str, str], how: str) -> None:
    done = read(brackets, how)
    assert (done.stdout, done.returncode) == ("read\n", 0), done.stderr


def test_process_ends_without_the_limit() -> None:
    assert read(ARRAYS, "infer", 10**9).returncode == -signal.SIGSEGV
