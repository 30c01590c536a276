"""The sources of a pipeline: the bucket of a source, and sources that are added, renamed, paused and removed."""

import re
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.errors import LakeRefused
from penstock.node import Node
from penstock.spark import Lake, Pipeline
from tests.spark.buckets import Documents, current_of, numbered

pytestmark = pytest.mark.spark


def write_pipeline(path: Path, *sources: str, rest: str = "") -> Pipeline:
    """Write a pipeline's file with these tables of sources."""
    path.write_text(f'lake = "lake"\n{"".join(sources)}{rest}')
    return Pipeline.from_file(str(path))


def test_another_bucket_is_refused_until_it_is_accepted(spark, documents, tmp_path, capsys):
    path, lake = tmp_path / "pipeline.toml", Lake(tmp_path / "lake")
    documents.store(numbered(0, 50))
    write_pipeline(path, f'[source.s]\nurl = "{documents.url}"\n').run(available_now=True, spark=spark)
    assert lake.current().num_rows == 50
    with Node.running(["default"], vbuckets=16) as other, Documents.of(other.url("default")) as others:
        others.store(numbered(0, 3, "other"))
        pipeline = write_pipeline(path, f'[source.s]\nurl = "{others.url}"\n')
        (planned,) = pipeline.plan()
        with pytest.raises(LakeRefused) as raised:
            pipeline.run(available_now=True, spark=spark)
        assert str(raised.value) == str(planned.refusal)
        uuids = re.findall(r"[0-9a-f]{32}", str(raised.value))
        assert (len({*uuids}), uuids[1]) == (2, planned.bucket_uuid)
        assert main(["pipeline", "validate", str(path), "--connect"]) == 2
        assert str(raised.value) in capsys.readouterr().err
        assert current_of(lake) == documents.contents()

        accepting = write_pipeline(path, f'[source.s]\nurl = "{others.url}"\nrecreated_bucket = "rollback"\n')
        assert accepting.plan()[0].refusal is None
        accepting.run(available_now=True, spark=spark)
        assert current_of(lake) == others.contents()
        assert pipeline.plan()[0].refusal is None
