"""`penstock tls`."""

from __future__ import annotations

import os
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from penstock.cli.base.app import AsJson, Panel, app, examples
from penstock.cli.base.show import json_line
from penstock.errors import Error, UsageError

commands = typer.Typer(help="Make certificates to try TLS with.", no_args_is_help=False, rich_markup_mode="rich")
app.add_typer(commands, name="tls", rich_help_panel=Panel.NODE)

TLS_PORT = 11207  # where couchbases:// looks for a node


@commands.callback(invoke_without_command=True)
def tls(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@commands.command(
    epilog=examples(
        "penstock tls init ./tls",
        "penstock tls init ./tls --host node.example.org --host 192.0.2.7 --user alice --days 30",
    )
)
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files go; made if not there.")],
    *,
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name or address of the node, beside localhost; may be given again."),
    ] = None,
    user: Annotated[
        str, typer.Option(metavar="NAME", help="Who the client's certificate is: one of the node's users.")
    ] = "Administrator",
    days: Annotated[int, typer.Option(min=1, max=3650, metavar="N", help="How long the certificates are good.")] = 365,
    force: Annotated[bool, typer.Option("--force", help="Make them anew if they are there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make an authority for development, and certificates of it: one for a node, one for a client.

    Six files: ca.pem, server.pem and client.pem, each with its key beside it (ca.key, …), which only its owner may
    read. Who has ca.key can make certificates that your nodes and clients believe. With --json the output is
    {"ca": …, "server": …, "server_key": …, "client": …, "client_key": …, "user": …, "expires": …}.
    """
    from penstock.node.auth.certificates import make_certificates

    names = [f"{name}.{ending}" for name in ("ca", "server", "client") for ending in ("pem", "key")]
    there = [name for name in names if (directory / name).exists()]
    if there and not force:
        raise UsageError(f"{directory / there[0]} is there already; --force makes all of them anew")
    now = datetime.now(UTC).replace(microsecond=0)
    made = make_certificates(host or [], user, days, now)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, one in made.items():
            _write(directory / f"{name}.key", one.key, 0o600)
            _write(directory / f"{name}.pem", one.certificate, 0o644)
    except OSError as error:
        raise Error(f"{error.filename or directory}: cannot be written: {error.strerror or error}") from error
    files = {
        "ca": directory / "ca.pem",
        "server": directory / "server.pem",
        "server_key": directory / "server.key",
        "client": directory / "client.pem",
        "client_key": directory / "client.key",
    }
    if as_json:
        expires = (now + timedelta(days=days)).isoformat()
        print(json_line({name: str(path) for name, path in files.items()} | {"user": user, "expires": expires}))
    else:
        _tell(files, user, days)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file that nobody else could open in between. What was there is replaced, however it was protected."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def _tell(files: dict[str, Path], user: str, days: int) -> None:
    quoted = {name: shlex.quote(str(path)) for name, path in files.items()}
    inside = {name: quote(str(path)) for name, path in files.items()}
    node = f"--tls-cert {quoted['server']} --tls-key {quoted['server_key']} --tls-client-ca {quoted['ca']}"
    client = f"couchbases://localhost/default?ca={inside['ca']}"
    shown = f"&certificate={inside['client']}&certificateKey={inside['client_key']}"
    print(f"Made {', '.join(map(str, files.values()))}; good for {days} days.")
    print(f"A node:    penstock serve --tls-port {TLS_PORT} {node}")
    print(f"A client:  {client}")
    print(f"as {user}, without a password:  {client}{shown}")
