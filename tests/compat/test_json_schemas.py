"""The schemas of --json outputs, by the validator of another project."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.cli import main
from penstock.cli.outputs.output_schemas import OUTPUTS, make_schema
from penstock.node import Node
from tests.compat.installed import require_package

require_package("jsonschema")


def make_validator(command: str) -> Any:
    from jsonschema import Draft202012Validator  # late: only where it is installed

    schema = make_schema(command)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("command", OUTPUTS)
def test_schema_is_valid(command):
    make_validator(command)


def test_outputs_are_valid(tmp_path, capsys):
    documents = tmp_path / "beers.jsonl"
    documents.write_text('{"id": "ale", "abv": 5}\n')
    with Node.running(["beer"], vbuckets=4) as node:
        for command, *words in (
            ("load", str(documents), "--key", "id"),
            ("tail", "--from", "beginning", "--until", "now"),
            ("stats",),
            ("top",),
        ):
            assert main([command, *words, "--json", "--url", node.url("beer")]) == 0
            lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            assert lines
            for line in lines:
                make_validator(command).validate(line)


def test_other_outputs_are_invalid():
    assert not make_validator("load").is_valid({"loaded": 1})
    assert not make_validator("load").is_valid({"loaded": "1", "skipped": 0, "seconds": 0.5, "stopped_at_line": None})
