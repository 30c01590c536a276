"""Completion of command lines, in a real bash on a terminal."""

import shutil
import sys

import pytest

from tests.cli.terminals import run_on_terminal

CASES = [
    ("penstock pip\t", "penstock pipeline "),
    ("penstock tail --unt\t", "penstock tail --until "),
    ("penstock tail --protocol upr-\t", "penstock tail --protocol upr-draft "),
    ("penstock pipeline show ./lake ch\t", "penstock pipeline show ./lake changelog "),
    ("penstock pipeline show ./lake bee\t", "penstock pipeline show ./lake beers "),
    ("penstock schema positions me\t", "penstock schema positions members "),
    ("penstock dump bee\t", "penstock dump beer.jsonl "),
]
"""Typed text, and text that bash then shows."""


@pytest.mark.process
@pytest.mark.long
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_choices_and_files(run, tmp_path):
    (tmp_path / "beer.jsonl").touch()
    (tmp_path / "lake" / "tables" / "beers").mkdir(parents=True)
    program = tmp_path / "bin" / "penstock"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock "$@"\n')
    program.chmod(0o755)
    script = tmp_path / "completion.bash"
    script.write_text(run("completion", "bash").out)
    start = f"cd {tmp_path}; PATH={program.parent}:$PATH; source {script}; echo ready"
    with run_on_terminal(
        ["bash", "--norc", "--noprofile", "-i"], {"TERM": "dumb", "PS1": "$ ", "COLUMNS": "80"}
    ) as bash:
        bash.write(f"{start}\n")
        bash.read_until("\nready")
        for typed, shown in CASES:
            bash.write(typed)
            bash.read_until(shown)
            bash.write("\x15")  # Ctrl-U removes the line


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script(run, shell):
    done = run("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert "_PENSTOCK_COMPLETE=complete_" + shell in done.out
    assert "_TYPER_COMPLETE_ARGS" in done.out
