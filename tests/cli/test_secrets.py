"""No output of a run has the password that was used: logs, results, errors, metrics, plans, diagnoses."""

import asyncio
import base64
import logging
import re

import pytest

import penstock
from penstock import Node
from penstock.cli.doctor.server_diagnosis import check_server
from penstock.client.connect.address import parse_address
from penstock.client.login.credentials import Credentials
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from tests.client.old_server import COUCHBASE_3_1, OldServer
from tests.node.http.web_client import WebClient

PASSWORD = "Hopfen-und-Malz"
WRONG = "Wasser-und-Salz"
COMMANDS = [
    "load - --key id",
    "stats",
    "stats --json",
    "streams list --json",
    "tail --from beginning --until now --json --report 0.001",
    "workload --changes 5 --rate 0",
    "top --interval 0.1",
    "top --interval 0.1 --json",
    "pipeline plan FILE --json",
    "pipeline validate FILE",
    "--debug stats nosuchgroup",
    "--debug tail --until now --scope nosuch",
]
SECRETS = [
    secret
    for word in (PASSWORD, WRONG)
    for secret in (word, base64.b64encode(word.encode()).decode(), base64.b64encode(f"ada:{word}".encode()).decode())
]


@pytest.fixture
def guarded(tmp_path):
    users = tmp_path / "users.json"
    with change_users(users) as accounts:
        accounts["ada"] = make_account(User.from_texts("ada", ["admin"]), PASSWORD, 4096)
    with Node.running(["beer"], vbuckets=4, users=users, allow_plain=True) as node:
        yield node


@pytest.fixture
def pipeline(guarded, tmp_path):
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    path = tmp_path / "pipeline.toml"
    path.write_text(
        f'lake = "lake"\n[source.beer]\nurl = "{guarded.url("beer")}"\nusername = "ada"\npassword_file = "password"\n'
    )
    return path


def test_no_output_has_the_password(run, guarded, pipeline, monkeypatch, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("PENSTOCK_USERNAME", "ada")
    monkeypatch.setenv("PENSTOCK_PASSWORD", PASSWORD)
    outputs = {}
    for command in COMMANDS:
        words = [pipeline if word == "FILE" else word for word in command.split()]
        access = [] if "FILE" in command else ["--url", guarded.url("beer")]
        outputs[command] = run(*words, *access, stdin=b'{"id": "stout"}\n')
    (tmp_path / "wrong").write_text(f"{WRONG}\n")
    outputs["wrong password"] = run("stats", "--url", guarded.url("beer"), "--password-file", tmp_path / "wrong")
    assert "refused the login of 'ada'" in outputs["wrong password"].err
    outputs["in the url"] = run("stats", "--url", f"couchbase://ada:{PASSWORD}@127.0.0.1/beer")
    assert outputs["in the url"].code == 2
    for name, word in (("web", PASSWORD), ("wrong web", WRONG)):
        web = WebClient(guarded, ("ada", word))
        outputs[name] = [web.get(path).body for path in ("/metrics", "/readyz", "/pools/default", "/whoami", "/nosuch")]
    outputs["doctor"] = asyncio.run(diagnose(guarded.url("beer"), PASSWORD))
    outputs["doctor, wrong password"] = asyncio.run(diagnose(guarded.url("beer"), WRONG))
    with OldServer(guarded, COUCHBASE_3_1, users={"ada": PASSWORD}) as server:  # it asks for CRAM-MD5 and PLAIN
        outputs["old server"] = asyncio.run(diagnose(server.url(), PASSWORD))
    outputs["consumer"] = asyncio.run(describe_consumer(guarded.url("beer"), tmp_path))
    outputs["log"] = caplog.text
    texts = {name: repr(output) for name, output in outputs.items()}
    assert {name for name, text in texts.items() for secret in SECRETS if secret in text} == set()
    # The outputs are those of a run that has logged in, and the logs those of both sides:
    assert "penstock_node_logins_total" in texts["web"]
    assert "stout" in texts["tail --from beginning --until now --json --report 0.001"]
    assert re.search(r"login from \S+ refused", caplog.text)


async def diagnose(url, password):
    return [each async for each in check_server(parse_address(url, Credentials("ada", password)))]


async def describe_consumer(url, directory):
    """Return the representations of objects that programs may log."""
    async with penstock.connect(url, username="ada", password=PASSWORD) as bucket:
        store = penstock.FilePositions(directory / "beer.positions")
        async with penstock.Consumer(bucket, store, stop="now") as consumer:
            async for _ in consumer.changes():
                pass
            report = await consumer.report()
            return [*map(repr, (bucket, bucket.address, consumer, vars(consumer), store)), report.to_dict()]
