"""A new kind of dependents is one module: a test adds, declares, plans, runs, shows, reads and resets a kind."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from penstock import cli
from penstock.errors import UsageError
from penstock.spark import Lake
from penstock.spark.dependents import kinds as package
from penstock.spark.dependents import registry
from penstock.spark.pipeline.definition.definition import parse_definition
from penstock.spark.pipeline.run.dependent_tasks import create_tasks
from penstock.spark.pipeline.run.run_plan import plan_run
from penstock.spark.pipeline.state import run_state
from penstock.spark.pipeline.state.lake_status import read_status
from penstock.spark.pipeline.state.stopping import plan_removal, remove_tables
from tests.spark.lakes import append, checkpoint, row

MODULE = '''
"""Keys of changed documents that begin with a letter, in a file."""

import json
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import UsageError
from penstock.spark.dependents.checks import check_declared_name
from penstock.spark.dependents.position_file import PositionFile
from penstock.spark.dependents.registry import DependentKind, Operand, Question, register_kind


class KeyList:
    def __init__(self, lake, name, letter):
        self.name = name
        self.path = lake.path / "key_lists" / f"{name}.keys"
        self._letter = letter.encode()
        self._position_file = PositionFile(self.path.with_suffix(".json"), "the list is made again")

    def position(self):
        return self._position_file.read()

    def apply_delta(self, delta):
        found = [] if delta.is_full else json.loads(self.path.read_text())
        for part in delta.ranges:
            keys = delta.read_range(part).changes["key"].to_pylist()
            found += [key.decode() for key in keys if key[:1] == self._letter]
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(json.dumps(found))
        self._position_file.write(delta.changelog_id, delta.version)

    def count_rows(self):
        return 0


def _keys(lake, name, operands, limit):
    path = lake.path / "key_lists" / f"{name}.keys"
    if not path.exists():
        raise UsageError(f"there is no key list {name!r}")
    keys = [key for key in json.loads(path.read_text()) if key >= operands["least"]][:limit]
    return pa.table({"key": pa.array(keys, pa.string()), "scope": [None] * len(keys), "collection": [None] * len(keys)})


@register_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class KeyListKind(DependentKind):
    title = kind = "key_list"
    directory = "key_lists"
    order = 90
    question = Question(
        command="keys",
        help="Show keys of a list.",
        examples=("penstock pipeline keys ./lake bs",),
        operands=(Operand("least", "KEY", "The first key."),),
        columns=("key",),
        answer=_keys,
    )
    letter: str

    def __post_init__(self):
        check_declared_name("key list", self.name)
        if len(self.letter) != 1:
            raise UsageError(f"letter is {self.letter!r}, expected one letter")

    def open(self, lake, session=None):
        return KeyList(lake, self.name, self.letter)

    def describe(self):
        return f"keys with {self.letter}"

    @classmethod
    def list_files(cls, lake, name):
        return sorted((lake.path / cls.directory).glob(f"{name}.*"))
'''


@pytest.fixture
def key_lists(tmp_path, monkeypatch):
    """Add a module with a new kind to the package of the kinds."""
    directory = tmp_path / "kinds"
    directory.mkdir()
    (directory / "key_list.py").write_text(MODULE)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(directory)])
    yield
    registry._registered.pop("key_list", None)
    sys.modules.pop(f"{package.__name__}.key_list", None)
    if hasattr(package, "key_list"):
        delattr(package, "key_list")


def declare(url: str, path: Path, **table: object):
    source = {"b": {"url": url}}
    return parse_definition({"lake": "lake", "source": source, "key_list": [table]}, str(path / "p.toml"))


def test_a_kind_is_one_module(key_lists, node, tmp_path, capsys):
    definition = declare(node.url("default"), tmp_path, name="bs", letter="b")
    (source,) = definition.sources
    lake = Lake(definition.locate_lake(source))
    # plan
    part = plan_run(definition).sources[0].parts[-1]
    assert (part.name, part.kind, part.description, part.is_new) == ("bs", "key_list", "keys with b", True)
    assert part.place == str(lake.path / "key_lists" / "bs")

    # run
    checkpoint(lake.checkpoint)
    append(lake, 0, [row(1, 1, b"beer"), row(1, 2, b"ale"), row(1, 3, b"bock")])
    tasks = create_tasks(definition, source, lake)
    assert [each.kind for task in tasks for each in task.list_progress()] == ["current", "key_list"]
    assert tasks[-1].is_due(0.0)
    for task in tasks:
        task.run()
    (ended,) = tasks[-1].list_progress()
    assert (ended.version, ended.pending) == (0, 0)

    # status
    progress = {"dependents": [asdict(each) for task in tasks for each in task.list_progress()]}
    replace(run_state.create_run_state(), ended=True, progress=progress).write(lake)
    shown = read_status(lake).dependents[-1]
    assert (shown.name, shown.kind, shown.version) == ("bs", "key_list", 0)
    assert shown.size is not None
    assert shown.size.files == 2

    # command line
    assert cli.main(["pipeline", "keys", str(lake.path), "bs", "bo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["key"] == "bock"
    assert cli.main(["pipeline", "keys", str(lake.path), "none", "a"]) == 2
    assert cli.main(["pipeline", "--help"]) == 0
    assert "Show keys of a list." in capsys.readouterr().out

    # reset
    remove_tables(plan_removal(lake, ["bs"]))
    assert list((lake.path / "key_lists").iterdir()) == []
    assert {lake.path / "key_lists"} <= set(plan_removal(lake, []).paths)


def test_errors_of_a_kind_name_their_place(key_lists, node, tmp_path):
    with pytest.raises(UsageError, match=r"\[\[key_list\]\] 1 letter is 'bc', expected one letter"):
        declare(node.url("default"), tmp_path, name="bs", letter="bc")
    with pytest.raises(UsageError, match=r"\[\[key_list\]\] 1 has an unknown key 'leter'; did you mean letter\?"):
        declare(node.url("default"), tmp_path, name="bs", letter="b", leter="c")


def test_without_its_module_the_kind_is_unknown(node, tmp_path):
    with pytest.raises(UsageError, match="has an unknown key 'key_list'"):
        declare(node.url("default"), tmp_path, name="bs", letter="b")


def test_two_kinds_of_one_name_are_refused():
    class Impostor(registry.DependentKind):
        kind = "index"

    assert registry.find_kind("index") is not None
    with pytest.raises(ValueError, match=r"Impostor has the kind 'index', which SecondaryIndexKind already has"):
        registry.register_kind(Impostor)
