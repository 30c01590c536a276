"""`penstock pipeline erase` and `vacuum`: the removed rows and files, and the reports."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.spark import Lake
from penstock.spark.dependents.dependent import catch_up
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex
from penstock.spark.lake.current.current_table import merge_current
from penstock.spark.lake.tables.lake_lock import hold_lock
from penstock.spark.pipeline.definition.definition import read_definition
from tests.spark.lakes import append, row
from tests.spark.test_collection_snapshot import is_of, open_shop
from tests.spark.test_retention import fill


@pytest.fixture
def lake(tmp_path):
    """A lake with an index, in the directory that `definition` names."""
    lake = Lake(tmp_path / "lake")
    append(lake, 0, [row(1, 1, b"user-1", b'{"abv": 5}'), row(1, 2, b"user-2", b'{"abv": 6}')])
    append(lake, 1, [row(1, 3, b"user-1", b'{"abv": 7}'), row(2, 1, b"user-3", None, "deletion")])
    merge_current(lake)
    catch_up(SecondaryIndex(lake, "by_abv", "abv", "double"), lake)
    return lake


@pytest.fixture
def definition(lake, tmp_path):
    file = tmp_path / "pipeline.toml"
    file.write_text(
        'lake = "lake"\n[source.beer]\nurl = "couchbase://127.0.0.1:1/beer"\n'
        '[[sink]]\nkind = "bucket"\nname = "copy"\nurl = "couchbase://127.0.0.1:1/copy"\ndead_letter_path = "refused"\n'
    )
    (tmp_path / "refused").mkdir()
    pq.write_table(pa.table({"key": [b"user-1"], "value": [b"7"]}), tmp_path / "refused" / "batch-0.parquet")
    return file


def test_erasure_reports_removed_rows(run, lake, definition, tmp_path):
    (tmp_path / "keys.txt").write_text("user-1\nuser-3\n\n")
    code, out, err = run("pipeline", "erase", definition, "--keys", tmp_path / "keys.txt")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "beer: 2 documents erased",
        "  changelog      3 rows in 2 files",
        "  current        1 row in 1 file",
        "  by_abv         1 row in 1 file",
        f"  {tmp_path / 'refused'} 1 row in 1 file",
        "1 of them still existed in current. Delete them in the bucket:"
        " a later change or a rollback writes them again.",
        "Replaced files stay on disk until penstock pipeline vacuum --keep-hours 0.",
    ]
    assert not list((tmp_path / "refused").iterdir())
    code, out, _ = run("pipeline", "find", lake.path, "by_abv", "7", "--json")
    assert (code, out) == (0, "")
    rows = run("pipeline", "show", lake.path, "changelog", "--json").json_lines
    assert sorted(row["event"] for row in rows) == ["erased", "erased", "erased", "mutation"]


def test_erasure_as_json(run, lake):
    found = run("pipeline", "erase", lake.path, "--key", "user-2", "--dry-run", "--json").json
    assert (found["documents"], found["existing"], found["is_done"]) == (1, 1, False)
    found = run("pipeline", "erase", lake.path, "--key", "user-2", "--json").json
    assert [(part["table"], part["kind"], part["rows"], part["files"]) for part in found["parts"]] == [
        ("changelog", "changelog", 1, 1), ("current", "current", 1, 1), ("by_abv", "index", 1, 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "no documents are named; expected keys or a condition"),
        (["--where", " "], "--where is ' ', expected a condition in SQL"),
        (["--keys", "/none"], "/none: No such file or directory, expected a list with one key a line"),
        (["--keys", "/"], "/: Is a directory, expected a list with one key a line"),
        (["--keys", "/dev/null"], "/dev/null has no key, expected a list with one key a line"),
        (["--key", "user-1", "--source", "other"], "--source is 'other', expected no name, there is one source"),
    ],
)
def test_wrong_erasure_is_one_sentence(run, lake, options, sentence):
    code, out, err = run("pipeline", "erase", lake.path, *options)
    assert (code, out) == (2, "")
    assert sentence in err


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("lines", [["user-1", "user-2"], ['"user-1"', '"\\u0075ser-2"'], ["", "user-1", "", "user-2"]])
def test_list_of_keys_is_read_in_each_form(run, lake, tmp_path, mark, end, lines):
    file = tmp_path / "keys.txt"
    for content in (end.join(f"{mark}{line}" for line in lines), f"{mark}{end.join(lines)}{end}"):
        file.write_bytes(content.encode())
        found = run("pipeline", "erase", lake.path, "--keys", file, "--dry-run", "--json")
        assert (found.code, found.json["documents"], found.json["missing_keys"]) == (0, 2, [])
    found = run("pipeline", "erase", lake.path, "--keys", "-", "--dry-run", "--json", stdin=content.encode())
    assert (found.code, found.json["documents"]) == (0, 2)


def test_keys_that_no_document_has_are_named(run, lake, tmp_path):
    (tmp_path / "keys.txt").write_text('user-1\nno-1\nuser-9\n"a\\nb"\nno-1\n')
    erase = ("pipeline", "erase", lake.path, "--keys", tmp_path / "keys.txt")
    for options, code in (([], 1), (["--allow-missing"], 0)):
        found = run(*erase, "--dry-run", *options)
        assert found.code == code
        assert found.err == "penstock: no document has 3 given keys: no-1, user-9, a\\nb\n"
    found = run(*erase, "--json")
    assert (found.code, found.json["documents"]) == (1, 1)
    assert found.json["missing_keys"] == ["no-1", "user-9", "a\nb"]
    assert [each["key"] for each in lake.current().to_pylist()] == ["user-2"]
    found = run("pipeline", "erase", lake.path, "--key", b"\xff".decode(errors="surrogateescape"), "--json")
    assert (found.code, found.json["missing_keys"]) == (1, ["\\xff"])


def test_unknown_collection_is_no_success(run, lake):
    found = run("pipeline", "erase", lake.path, "--key", "user-1", "--collection", "app.users")
    assert found.code == 1
    assert "no document has 1 given key: user-1" in found.err
    assert "no change is in the collection 'app.users'" in found.err
    assert run("pipeline", "erase", lake.path, "--key", "user-1", "--collection", "_default").code == 0


def test_key_of_one_source_is_not_missing(run, tmp_path):
    file = tmp_path / "pipeline.toml"
    file.write_text(
        'lake = "lake"\n[source.beer]\nurl = "couchbase://h/beer"\n[source.wine]\nurl = "couchbase://h/wine"\n'
    )
    for number, name in enumerate(("beer", "wine")):
        append(Lake(tmp_path / "lake" / name), 0, [row(1, 1, b"both", b"{}"), row(1, 2, b"%d" % number, b"{}")])
    found = run("pipeline", "erase", file, "--key", "both", "--key", "0", "--key", "1")
    assert (found.code, found.err) == (0, "")
    assert run("pipeline", "erase", file, "--key", "2").err == "penstock: no document has 1 given key: 2\n"


def test_erasure_is_refused_during_a_run(run, lake):
    with hold_lock(lake.path, 0):
        code, _, err = run("pipeline", "erase", lake.path, "--key", "user-1")
    assert (code, f"another run writes {lake.path}; stop it first" in err) == (2, True)
    assert lake.current().num_rows == 2


def test_retention_drops_old_versions(run, tmp_path):
    lake = Lake(tmp_path / "lake")
    fill(lake)
    merge_current(lake)
    file = tmp_path / "pipeline.toml"
    file.write_text('lake = "lake"\n[source.beer]\nurl = "couchbase://h/beer"\n[tables]\nretention = "0 days"\n')
    assert run("pipeline", "retain", lake.path, "--retention", "1 hour").out.startswith("0 of 8 rows dropped; ")
    out = run("pipeline", "retain", file, "--dry-run").out
    assert out.startswith("beer: 2 of 8 rows would be dropped; the oldest state left is that of 20")
    found = run("pipeline", "retain", file, "--json").json
    assert (found["source"], found["rows_before"], found["rows_after"], found["is_done"]) == ("beer", 8, 6, True)
    code, _, err = run("pipeline", "retain", lake.path)
    assert (code, "expected --retention, or retention in [tables] of FILE" in err) == (2, True)
    file.write_text(file.read_text().replace("0 days", "soon"))
    code, _, err = run("pipeline", "validate", file)
    assert (code, "[tables] retention is 'soon', expected an age such as 30 days" in err) == (2, True)


def test_resnapshot_is_left_to_the_next_run(run, tmp_path):
    lake = Lake(tmp_path / "lake")
    fill(lake)
    code, _, err = run("pipeline", "resnapshot", lake.path, "--collection", "app.users")
    assert (code, f"--collection, and {lake.path} does not name the bucket; expected the pip" in err) == (2, True)
    _, out, err = run("pipeline", "resnapshot", lake.path, "--vbuckets", "0-63")
    assert out == f"No run writes {lake.path}; the next run reads 1 vbucket again.\n"
    assert json.loads((lake.path / "_resnapshot.json").read_text()) == {"1": 0}
    assert run("pipeline", "resnapshot", lake.path, "--vbuckets", "0-1", "--json").json == {
        "vbuckets": [1],
        "done": False,
    }
    assert run("pipeline", "resnapshot", lake.path, "--key", "k", "--json").json["vbuckets"] == []
    for options in ([], ["--key", "k", "--vbuckets", "1"]):
        code, _, err = run("pipeline", "resnapshot", lake.path, *options)
        assert (code, "expected one of --vbuckets, --key or --keys, and --collection" in err) == (2, True)


def test_resnapshot_of_a_collection_reports_changes(run, tmp_path):
    with open_shop(tmp_path / "lake") as shop:
        shop.store("shop.a", {f"k{n}": n for n in range(5)})
        shop.run(is_of("shop.a"))
        file = tmp_path / "pipeline.toml"
        file.write_text(f'lake = "lake"\n[source.s]\nurl = "{shop.documents.url}"\n')
        code, out, err = run("pipeline", "resnapshot", file, "--collection", "shop.a", "--collection", "shop.b")
        assert (code, err) == (0, "")
        assert out == "shop.a, shop.b: 5 changes read; 5 documents added or replaced, 0 removed.\n"
        assert run("pipeline", "resnapshot", file, "--collection", "shop.a", "--json").json == {
            "source": "s", "collections": ["shop.a"], "documents": 5, "added": 0, "removed": 0
        }  # fmt: skip
        code, _, err = run("pipeline", "resnapshot", file, "--collection", "shop.c")
        assert (code, err) == (2, "penstock: the bucket has no collection 'shop.c'\n")


def test_vacuum_reports_freed_files(run, lake):
    run("pipeline", "erase", lake.path, "--key", "user-1")
    shown = run("pipeline", "vacuum", lake.path, "--keep-hours", 0, "--dry-run")
    (planned,) = run("pipeline", "vacuum", lake.path, "--keep-hours", 0, "--dry-run", "--json").json_lines
    (done,) = run("pipeline", "vacuum", lake.path, "--keep-hours", 0, "--json").json_lines
    assert json.dumps(planned) == json.dumps(done)
    assert [line.rpartition("; ")[2].partition(" (")[0] for line in shown.lines] == ["2 files", "1 file", "1 file"]
    assert all(line.endswith(") would be freed") for line in shown.lines)
    sizes = [done["changelog"], done["current"], done["indexes"]["by_abv"]]
    assert [(each["files_before"], each["files_after"]) for each in sizes] == [(4, 2), (2, 1), (2, 1)]
    assert all(each["bytes_after"] < each["bytes_before"] for each in sizes)


def test_retype_reports_columns_rows_and_misfits(run, lake, definition):
    keys = '[[table]]\ncollection = "_default"\nname = "users"\nschema = "{}"\n'
    text = definition.read_text().replace(":1/beer", ":1/beer?retrySeconds=0.05")
    code, out, err = run("pipeline", "retype", definition)
    assert (code, out) == (0, f"{definition} has no typed tables yet; penstock pipeline run builds them.\n")
    definition.write_text(text + keys.format("abv STRING"))
    catch_up(read_definition(str(definition)).dependents[0].open(lake), lake)
    definition.write_text(text + keys.format("abv INT"))
    planned = run("pipeline", "plan", definition).out
    assert re.search(r"users +table +differs .*\n +retype: abv was STRING and is INT\n", planned)
    code, out, err = run("pipeline", "retype", definition, "--table", "users")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "beer users: built again, 2 rows",
        "  abv was STRING and is INT",
        "  _rest: 2 rows before, 0 after",
        "  abv: number in 2 values before, 0 after",
    ]
    assert run("pipeline", "retype", definition).out == "beer users: as declared, 2 rows\n"
    definition.write_text(text + keys.format("abv BIGINT"))
    (found,) = run("pipeline", "retype", definition, "--json").json_lines
    assert (found["name"], found["changes"]) == ("users", ["abv was INT and is BIGINT"])
    assert (found["before"]["columns"], found["after"]["rest"]["rows"]) == ({"abv": "INT"}, 0)
    code, _, err = run("pipeline", "retype", definition, "--table", "beers")
    assert (code, err) == (2, "penstock: the pipeline declares no table 'beers', expected users\n")
