"""`penstock doctor`: check the machine and a server, and advise."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer

from penstock.cli.base.app import (
    AsJson,
    OptionalUrl,
    Panel,
    PasswordFile,
    Username,
    app,
    format_examples,
    resolve_address,
)
from penstock.cli.base.exit_codes import ExitCode
from penstock.cli.base.show import format_json_line, format_one_line
from penstock.cli.doctor.finding import Finding, FindingState
from penstock.client.connect.address import Address
from penstock.names import make_printable

_STYLES = {
    FindingState.OK: "green",
    FindingState.INFO: "dim",
    FindingState.WARNING: "yellow",
    FindingState.PROBLEM: "bold red",
}
_WIDTH = max(map(len, FindingState))
_LONGEST = 2000
"""Characters of a text that a server may have chosen."""


@app.command(
    rich_help_panel=Panel.NODE,
    epilog=format_examples(
        "penstock doctor",
        "penstock doctor --url couchbases://10.0.0.1/beer?ca=ca.pem --username u --password-file u.password",
        "penstock doctor --json | jq -r '.findings[] | select(.state == \"problem\").text'",
    ),
)
def doctor(
    *,
    url: OptionalUrl = None,
    username: Username = None,
    password: PasswordFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print warnings and problems only.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check this machine, and with --url a server, and print advice for each problem.

    The machine: versions, optional packages, Java for Spark, disk space, and the
    ports of a node. The server: reachability of all its nodes, login, version,
    clock, the rights of the user, and features that commands use. Nothing is
    changed: the right to write is tested by the deletion of a random key that
    does not exist.

    The exit code is 0 if there is no problem, 1 if there is one, 2 for wrong
    usage. Warnings and missing features do not change it.
    """
    from penstock.cli.doctor.local_checks import check_machine

    address = None if url is None else resolve_address(url, username, password)
    found = [*check_machine(os.environ)]
    if address is not None:
        found += asyncio.run(_list_server_findings(address))
    counts = Counter(each.state for each in found)
    if quiet:
        found = [each for each in found if each.state in (FindingState.WARNING, FindingState.PROBLEM)]
    if as_json:
        totals = {"problems": counts[FindingState.PROBLEM], "warnings": counts[FindingState.WARNING]}
        print(format_json_line({**totals, "findings": [asdict(each) for each in found]}))
    else:
        _print_findings(found, counts, has_server=address is not None)
    if counts[FindingState.PROBLEM]:
        raise typer.Exit(ExitCode.FAILURE)


async def _list_server_findings(address: Address) -> list[Finding]:
    from penstock.cli.doctor.server_diagnosis import check_server

    return [each async for each in check_server(address)]


def _print_findings(found: Iterable[Finding], counts: Counter[FindingState], *, has_server: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True, file=sys.stdout)
    topic = ""
    for each in found:
        if each.topic != topic:
            topic = each.topic
            console.print(Text(topic, style="bold"))
        text = format_one_line(each.text.encode(), _LONGEST)
        console.print(Text.assemble("  ", (f"{each.state.value:{_WIDTH}}", _STYLES[each.state]), "  ", text))
        if each.advice:
            console.print(Text(f"  {'':{_WIDTH}}  -> {make_printable(each.advice)}"))
    problems, warnings = counts[FindingState.PROBLEM], counts[FindingState.WARNING]
    console.print(Text(f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}."))
    if not has_server:
        console.print(Text("No server was checked: give --url, or set PENSTOCK_URL."))


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' * (number != 1)}"
