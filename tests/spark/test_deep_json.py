"""JSON of many levels ends no process: the parser is C, and its stack is limited. Each case has its own process."""

import subprocess
import sys

import pytest

from tests.patience import PATIENCE

pytestmark = pytest.mark.process

LEVELS = 200_000

READ = """
import sys
import pyarrow as pa
from penstock.spark.tables import json_columns
from penstock.spark.dependents import json_paths as paths
from penstock.spark.dependents.value_types import find_value_type

opening, closing, how = sys.argv[1].encode(), sys.argv[2].encode(), sys.argv[3]
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


@pytest.mark.parametrize("how", ["infer", "parse", "extract"])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
def test_deep_json_ends_no_process(brackets: tuple[str, str], how: str) -> None:
    command = [sys.executable, "-c", READ, *brackets, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.returncode) == ("read\n", 0), done.stderr
