"""The sources of a pipeline: the bucket of a source, and sources that are added, renamed, paused and removed."""

import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.cli import main
from penstock.errors import LakeRefused, UsageError
from penstock.node import Node
from penstock.spark import Lake, Pipeline, SecondaryIndex
from penstock.spark.pipeline.definition.definition import SourceDefinition, define_bucket_pipeline
from penstock.spark.pipeline.state.source_lakes import StoredLake, assign_lakes
from tests.client.test_collections import change
from tests.spark.buckets import Documents, current_of, numbered


def write_pipeline(path: Path, *sources: str, rest: str = "") -> Pipeline:
    """Write a pipeline's file with these tables of sources."""
    path.write_text(f'lake = "lake"\n{"".join(sources)}{rest}')
    return Pipeline.from_file(str(path))


@pytest.mark.spark
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


ROOT = Path("/lakes")


def assign(sources: str, **stored: str) -> str:
    """Return the places of sources, and the removed lakes, in words; `stored` has the source of each directory."""
    declared = []
    for word in sources.split():
        name, _, former = word.partition("<")
        declared.append(SourceDefinition(name=name.rstrip("!"), renamed_from=former or None, paused=name.endswith("!")))
    lakes = [StoredLake(ROOT if place == "root" else ROOT / place, name or None) for place, name in stored.items()]
    found = assign_lakes(ROOT, declared, lakes)
    words = [f"{each.source.name}:{'refused' if each.refusal else each.path.name}" for each in found.declared]
    return " ".join([*words, *(f"-{each.source}" for each in found.removed)])


@pytest.mark.parametrize(
    ("sources", "stored", "expected"),
    [
        ("a", {}, "a:lakes"),
        ("a b", {}, "a:a b:b"),
        ("a b", {"root": "a"}, "a:lakes b:b"),  # added
        ("a", {"a": "a", "b": "b"}, "a:a -b"),  # removed
        ("b", {"root": "a", "b": "b"}, "b:b -a"),
        ("a b", {"a": "a"}, "a:a b:b"),
        ("b", {"root": "a"}, "b:refused -a"),  # renamed, or removed?
        ("a c", {"a": "a", "b": "b"}, "a:a c:refused -b"),
        ("b<a", {"root": "a"}, "b:lakes"),
        ("b<a", {"root": "b"}, "b:lakes"),
        ("a c<b", {"a": "a", "b": "b"}, "a:a c:b"),
        ("a c", {"a": "a", "b": "c"}, "a:a c:b"),
        ("a c b", {"a": "a", "b": "c"}, "a:a c:b b:refused"),  # its directory is taken
        ("a", {"root": ""}, "a:lakes"),
        ("a", {"root": "", "a": "a"}, "a:a -None"),
        ("a b", {"root": ""}, "a:refused b:refused -None"),
        ("a! b", {"a": "a"}, "a:a b:b"),
        ("a!", {"root": "a"}, "a:refused"),
    ],
)
def test_the_tables_that_exist_decide_about_the_places(sources, stored, expected):
    assert assign(sources, **stored) == expected


def test_a_source_without_a_name_continues_the_only_lake():
    (unnamed,) = define_bucket_pipeline("lake").sources
    assert assign_lakes(ROOT, [unnamed], [StoredLake(ROOT, "a")]).declared[0].path == ROOT
    (found,) = assign_lakes(ROOT, [unnamed], [StoredLake(ROOT / "a", "a")]).declared
    assert "has the tables of the sources a; expected their pipeline's file" in str(found.refusal)


class Cellar:
    """A pipeline whose file changes from run to run, and the two buckets that its sources name.

    Attributes:
        node: the node of the buckets.
        file: the file.
        lake: the place of the tables.
        beer, wine: the sources in the file.
        spark: the session of the runs.
    """

    def __init__(self, node: Node, directory: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
        self.node, self.file, self.lake = node, directory / "pipeline.toml", directory / "lake"
        self.beer, self.wine = (f'[source.{name}]\nurl = "{node.url(name)}"\n' for name in ("beer", "wine"))
        self.spark, self._capsys = spark, capsys

    def call(self, *words: str) -> tuple[int, str]:
        """Return the exit code and the output of a command about the file."""
        self._capsys.readouterr()
        code = main(["pipeline", words[0], str(self.file), *words[1:]])
        return code, "".join(self._capsys.readouterr())

    def run(self, *sources: str) -> dict[str | None, int]:
        """Run a file, and return the rows that each source wrote; the plan must have predicted the places."""
        pipeline = write_pipeline(self.file, *sources)
        planned = {each.name: each for each in pipeline.plan()}
        places = {name: lake.path for name, lake in pipeline.lakes.items()}
        assert [each.refusal for each in planned.values()] == [None] * len(planned)
        assert {name: Path(each.status.lake) for name, each in planned.items()} == places
        rows = {each.source: each.rows for each in pipeline.run(available_now=True, spark=self.spark)}
        assert {name: lake.path for name, lake in pipeline.lakes.items()} == places
        return rows


@pytest.fixture
def cellar(spark, tmp_path, capsys):
    with Node.running(["beer", "wine"], vbuckets=4) as node:
        for name in ("beer", "wine"):
            with Documents.of(node.url(name)) as documents:
                documents.store(numbered(0, 10))
        yield Cellar(node, tmp_path, spark, capsys)


@pytest.mark.spark
def test_sources_are_added_paused_and_renamed(cellar):
    assert cellar.run(cellar.beer) == {"beer": 10}
    assert cellar.run(cellar.beer, cellar.wine) == {"beer": 0, "wine": 10}
    assert current_of(Lake(cellar.lake)).keys() == current_of(Lake(cellar.lake / "wine")).keys()

    # Paused: its tables stay and are read, and no run writes them.
    assert cellar.run(cellar.beer, cellar.wine + "paused = true\n") == {"beer": 0}
    code, out = cellar.call("status")
    assert (code, "state          paused; not running" in out) == (0, True)
    assert "paused" in cellar.call("plan")[1]
    assert cellar.call("show", "current", "--source", "wine")[0] == 0
    away = cellar.wine.replace(f":{cellar.node.kv_port}/", ":1/") + "paused = true\n"
    write_pipeline(cellar.file, cellar.beer, away)
    code, out = cellar.call("validate", "--connect")
    assert (code, out.count(" seqnos")) == (0, 1)

    # Renamed: the tables go on where they are.
    red = cellar.wine.replace("source.wine", "source.red")
    renamed = red + 'renamed_from = "wine"\n'
    write_pipeline(cellar.file, cellar.beer, renamed)
    assert "renamed from             wine" in cellar.call("plan")[1]
    assert cellar.run(cellar.beer, renamed) == {"beer": 0, "red": 0}
    assert cellar.run(cellar.beer, red) == {"beer": 0, "red": 0}


@pytest.mark.spark
def test_a_removed_source_stays_until_a_reset(cellar):
    assert cellar.run(cellar.beer) == {"beer": 10}
    assert cellar.run(cellar.beer, cellar.wine) == {"beer": 0, "wine": 10}
    # The other source stays in its directory, although it is the only one.
    assert cellar.run(cellar.wine) == {"wine": 0}
    code, out = cellar.call("plan", "--json")
    (_, gone) = map(json.loads, out.splitlines())
    assert (code, gone["name"], gone["lake"]["declared"]) == (0, "beer", False)
    assert gone["lake"]["changelog"]["rows"] == 10
    assert "beer  " in cellar.call("plan")[1]
    assert "no longer declared; its files stay until a reset with --source beer" in cellar.call("status")[1]

    other = write_pipeline(cellar.file, cellar.wine, cellar.beer.replace("source.beer", "source.ale"))
    (refusal,) = (each.refusal for each in other.plan() if each.refusal)
    message = "has tables of 'beer', which the file lacks: expected renamed_from in"
    with pytest.raises(UsageError, match=message) as raised:
        other.run(available_now=True, spark=cellar.spark)
    assert str(raised.value) == str(refusal)

    write_pipeline(cellar.file, cellar.wine)
    code, out = cellar.call("reset", "--source", "beer", "--yes")
    assert (code, "/lake/wine" in out) == (0, False)
    assert not (cellar.lake / "changelog").exists()
    assert cellar.call("plan", "--json")[1].count("\n") == 1
    assert cellar.run(cellar.wine, cellar.beer) == {"wine": 0, "beer": 10}
    assert (cellar.lake / "beer" / "changelog").exists()


@pytest.mark.spark
def test_collections_and_scopes_may_be_created_again(spark, tmp_path):
    path = tmp_path / "pipeline.toml"
    index = '[[index]]\nname = "by_n"\nsource = "ales"\npath = "n"\ntype = "long"\n'
    with Node.running(["beer"], vbuckets=4) as node, Documents.of(node.url("beer")) as documents:

        def run(**stored: str) -> list[set[str]]:
            """Store documents in a collection `shop.NAME`, and return the keys in current of both sources."""
            for name, keys in stored.items():
                documents_of = ((key, b'{"n": %d}' % number) for number, key in enumerate(keys))
                documents.loop.run(documents.bucket.upsert_many(documents_of, collection=f"shop.{name}"))
            pipeline.run(available_now=True, spark=spark)
            return [{*lake.current(["key"])["key"].to_pylist()} for lake in pipeline.lakes.values()]

        def create() -> None:
            change(node, lambda manifest: manifest.with_scope("shop"))
            for name in ("ales", "hats"):
                change(node, lambda manifest, name=name: manifest.with_collection("shop", name))

        ales = f'[source.ales]\nurl = "{documents.url}"\ncollections = ["shop.ales"]\n'
        pipeline = write_pipeline(path, ales, f'[source.shop]\nurl = "{documents.url}"\nscope = "shop"\n', rest=index)
        create()
        assert run(ales="abcdef", hats="xyz") == [{*"abcdef"}, {*"abcdefxyz"}]
        change(node, lambda manifest: manifest.without_collection("shop", "ales"))
        change(node, lambda manifest: manifest.with_collection("shop", "ales"))
        assert run(ales="bq") == [{*"bq"}, {*"bqxyz"}]
        by_n = SecondaryIndex(pipeline.lakes["ales"], "by_n", "n", "long")
        assert by_n.range(0)["key"].to_pylist() == ["b", "q"]
        change(node, lambda manifest: manifest.without_scope("shop"))
        assert run() == [set(), set()]
        create()
        assert run(ales="c", hats="w") == [{"c"}, {*"cw"}]
        assert by_n.range(0)["key"].to_pylist() == ["c"]
