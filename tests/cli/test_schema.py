"""`penstock schema`: every command with --json has a schema. The fixture `run` compares all outputs with them."""

import pytest

from penstock.cli.outputs.output_schemas import OUTPUTS, make_schema
from tests.cli.output_checks import list_faults
from tests.cli.test_commands import FOUND

REPORT = "tail report"
"""The object on standard error."""


def test_all_commands_with_json_have_a_schema():
    with_json = {
        " ".join(path)
        for path, command in FOUND
        if "--json" in [option for parameter in command.params for option in parameter.opts]
    }
    assert OUTPUTS.keys() - {REPORT} == with_json


@pytest.mark.parametrize("command", OUTPUTS)
def test_schema_describes_every_field(run, command):
    schema = run("schema", *command.split()).json
    assert schema == make_schema(command)
    for kind in schema["$defs"].values():
        assert kind["description"].endswith(".")
        assert [name for name, each in kind["properties"].items() if not each.get("description")] == []


def test_commands_are_listed(run):
    listed = dict(line.rsplit(maxsplit=1) for line in run("schema").lines)
    assert listed == {name: "lines" if output.is_lines else "object" for name, output in OUTPUTS.items()}


def test_command_without_json_is_wrong_usage(run):
    code, _, err = run("schema", "demo")
    assert (code, err.count("\n")) == (2, 1)
    assert "'demo' prints no JSON" in err


LOAD = {"loaded": 1, "skipped": 0, "seconds": 0.5, "stopped_at_line": None}


@pytest.mark.parametrize(
    ("command", "found", "fault"),
    [
        ("load", LOAD | {"more": 1}, "$.more is not declared"),
        ("load", {"loaded": 1}, "$.skipped is missing"),
        ("load", LOAD | {"loaded": True}, "$.loaded is True, expected integer"),
        ("load", LOAD | {"stopped_at_line": "7"}, "$.stopped_at_line is '7', expected null"),
        ("tail", {"cas": "0x7"}, "$.cas is '0x7', expected ^[0-9]{1,20}$"),
        ("stats", {"items": 7}, "$.items is 7, expected string"),
        ("positions members", {"vbuckets": [1, "2"]}, "$.vbuckets[1] is '2', expected integer"),
    ],
)
def test_outputs_that_differ_from_their_schema_are_found(command, found, fault):
    schema = make_schema(command)
    assert fault in list_faults(found, schema, schema)
