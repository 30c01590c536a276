"""The files of contrib/ that start pipelines: the CLI accepts their commands, and their pipelines are valid."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from penstock.cli.base.app import app
from penstock.cli.entry import register_commands
from penstock.client.connect.address import parse_address
from penstock.spark.pipeline.definition.definition import read_definition
from penstock.spark.storage.object_path import parse_place

CONTRIB = Path(__file__).parent.parent / "contrib"
EXAMPLES = CONTRIB.parent / "examples"
UNITS = sorted((CONTRIB / "systemd").glob("*"))


def parse_command(words: list[str]) -> dict[str, Any]:
    """Return the parameters of a command line after `penstock`, as the CLI parses it."""
    register_commands()
    command: Any = typer.main.get_command(app)
    context: Any = command.make_context("penstock", list(words))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    return dict(context.params)


def test_unknown_arguments_are_found():
    with pytest.raises(typer.TyperException, match="--available-soon"):
        parse_command(["pipeline", "run", "p.toml", "--available-soon"])


def list_bash_commands() -> list[str]:
    """Return the commands of the DAGs. Airflow itself is not installed: the operators are read from the source."""
    text = (CONTRIB / "airflow" / "penstock_beer.py").read_text()
    names: dict[str, Any] = {}
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names[node.targets[0].id] = node.value.value  # type: ignore[attr-defined]
        if isinstance(node, ast.keyword) and node.arg == "bash_command":
            found.append(node.value)
    return [eval(ast.unparse(each), {}, names) for each in found]


def test_airflow_runs_commands():
    commands = [shlex.split(each) for each in list_bash_commands()]
    assert len(commands) == 4
    for program, *words in commands:
        assert program == "penstock"
        assert "/etc/penstock/beer.toml" in parse_command(words).values()


@pytest.mark.parametrize("unit", [each for each in UNITS if each.suffix == ".service"], ids=lambda unit: unit.name)
def test_systemd_runs_commands(unit):
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    program, *words = shlex.split(line)
    assert program == "/usr/bin/penstock"
    assert parse_command(words)["file"] == "/etc/penstock/%i.toml"


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_systemd_accepts_the_units(tmp_path):
    program = Path(sys.executable).parent / "penstock"
    paths = []
    for unit in UNITS:
        path = tmp_path / unit.name.replace("@", "@beer")
        path.write_text(unit.read_text().replace("/usr/bin/penstock", str(program)))
        paths.append(str(path))
    done = subprocess.run(["systemd-analyze", "verify", *paths], capture_output=True, text=True, check=False)
    own = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "penstock-" in line]
    assert (own, done.returncode) == ([], 0)


def read_objects(name: str) -> list[Any]:
    return [*yaml.safe_load_all((CONTRIB / "kubernetes" / name).read_text())]


def find_pod(declared: Any) -> Any:
    return declared["spec"]["template"]["spec"]


def test_kubernetes_runs_commands(tmp_path):
    config, job, deployment = read_objects("pipeline.yaml")
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "metrics-password").write_text("secret\n")
    path = tmp_path / "pipeline.toml"
    path.write_text(config["data"]["pipeline.toml"].replace("/run/secrets/penstock", str(tmp_path)))
    definition = read_definition(str(path))
    assert definition.metrics is not None
    assert definition.metrics.read_login() is not None
    for declared in (job, deployment):
        pod = find_pod(declared)
        (container,) = pod["containers"]
        assert container["command"] == ["penstock"]
        found = parse_command(container["args"])
        assert found["available_now"] == (declared["kind"] == "Job")
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        assert mounts.keys() == {str(Path(found["file"]).parent), "/run/secrets/penstock", "/tmp"}
        assert {*mounts.values()} == {each["name"] for each in pod["volumes"]}
        assert container["ports"] == [{"name": "metrics", "containerPort": definition.metrics.port}]
        probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
        assert {each["port"] for each in probes.values()} == {"metrics"}
        assert [each["path"] for each in probes.values()] == ["/healthz", "/healthz", "/readyz"]
    assert find_pod(job)["containers"][0]["readinessProbe"] == find_pod(deployment)["containers"][0]["readinessProbe"]


def test_applications_have_the_arguments_of_their_program():
    (application,) = read_objects("spark-application.yaml")
    assert application["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    task = json.loads((CONTRIB / "databricks" / "job.json").read_text())["tasks"][0]["spark_python_task"]
    started = {
        application["spec"]["template"]["mainApplicationFile"]: application["spec"]["template"]["arguments"],
        task["python_file"]: task["parameters"],
    }
    program = (EXAMPLES / "cluster" / "follow.py").read_text()
    assert "url, lake = sys.argv[1:]" in program
    for file, (url, lake) in started.items():
        assert Path(file).name == "follow.py"
        assert parse_address(url).tls
        assert str(parse_place(lake)) == lake
