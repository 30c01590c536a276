"""The sources of a pipeline: the bucket of a source, and sources that are added, renamed, paused and removed."""

import json
import re
from pathlib import Path

import pytest

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


@pytest.mark.spark
def test_sources_are_added_renamed_paused_and_removed(spark, tmp_path, capsys):
    def command(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["pipeline", words[0], str(path), *words[1:]])
        return code, "".join(capsys.readouterr())

    def run(*sources: str) -> dict[str | None, int]:
        """Run a file, and return the rows that each source wrote; the plan must have predicted the places."""
        pipeline = write_pipeline(path, *sources)
        planned = {each.name: each for each in pipeline.plan()}
        places = {name: lake.path for name, lake in pipeline.lakes.items()}
        assert [each.refusal for each in planned.values()] == [None] * len(planned)
        assert {name: Path(each.status.lake) for name, each in planned.items()} == places
        rows = {each.source: each.rows for each in pipeline.run(available_now=True, spark=spark)}
        assert {name: lake.path for name, lake in pipeline.lakes.items()} == places
        return rows

    path = tmp_path / "pipeline.toml"
    with Node.running(["beer", "wine"], vbuckets=4) as node:
        urls = {name: node.url(name) for name in ("beer", "wine")}
        for url in urls.values():
            with Documents.of(url) as documents:
                documents.store(numbered(0, 10))
        beer, wine = (f'[source.{name}]\nurl = "{url}"\n' for name, url in urls.items())
        root = tmp_path / "lake"
        assert run(beer) == {"beer": 10}
        assert run(beer, wine) == {"beer": 0, "wine": 10}
        assert current_of(Lake(root)).keys() == current_of(Lake(root / "wine")).keys()

        # Paused: its tables stay and are read, and no run writes them.
        assert run(beer, wine + "paused = true\n") == {"beer": 0}
        code, out = command("status")
        assert (code, "state          paused; not running" in out) == (0, True)
        assert "paused" in command("plan")[1]
        assert command("show", "current", "--source", "wine")[0] == 0

        away = wine.replace(f":{node.kv_port}/", ":1/") + "paused = true\n"
        write_pipeline(path, beer, away)
        code, out = command("validate", "--connect")
        assert (code, out.count(" seqnos")) == (0, 1)

        # Renamed: the tables go on where they are.
        renamed = wine.replace("source.wine", "source.red") + 'renamed_from = "wine"\n'
        write_pipeline(path, beer, renamed)
        assert "renamed from             wine" in command("plan")[1]
        assert run(beer, renamed) == {"beer": 0, "red": 0}
        assert run(beer, renamed.replace('renamed_from = "wine"\n', "")) == {"beer": 0, "red": 0}

        # Removed: the other source stays in its directory, although it is the only one.
        red = renamed.replace('renamed_from = "wine"\n', "")
        assert run(red) == {"red": 0}
        code, out = command("plan", "--json")
        (_, gone) = map(json.loads, out.splitlines())
        assert (code, gone["name"], gone["lake"]["declared"], gone["lake"]["changelog"]["rows"]) == (
            0,
            "beer",
            False,
            10,
        )
        assert "beer  " in command("plan")[1]
        assert "no longer declared; its files stay until a reset with --source beer" in command("status")[1]
        other = write_pipeline(path, red, beer.replace("source.beer", "source.ale"))
        (refusal,) = (each.refusal for each in other.plan() if each.refusal)
        with pytest.raises(
            UsageError, match="has tables of 'beer', which the file lacks: expected renamed_from in"
        ) as raised:
            other.run(available_now=True, spark=spark)
        assert str(raised.value) == str(refusal)
        write_pipeline(path, red)
        code, out = command("reset", "--source", "beer", "--yes")
        assert (code, "/lake/wine" in out) == (0, False)
        assert not (root / "changelog").exists()
        assert command("plan", "--json")[1].count("\n") == 1
        assert run(red, beer) == {"red": 0, "beer": 10}
        assert (root / "beer" / "changelog").exists()


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
