"""`penstock tls`: create certificates for development."""

from __future__ import annotations

import os
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from penstock.cli.base.app import AsJson, Panel, app, format_examples
from penstock.cli.base.show import format_json_line, print_text
from penstock.errors import Error, UsageError
from penstock.store.disk.bucket_files import Directory

commands = typer.Typer(help="Create TLS certificates for development.", no_args_is_help=False, rich_markup_mode="rich")
app.add_typer(commands, name="tls", rich_help_panel=Panel.NODE)

TLS_PORT = 11207  # the default port of couchbases://


@commands.callback(invoke_without_command=True)
def tls(context: typer.Context) -> None:  # noqa: D103 - a docstring would replace the group's help
    if context.invoked_subcommand is None:
        print(context.get_help())


@commands.command(
    epilog=format_examples(
        "penstock tls init ./tls",
        "penstock tls init ./tls --host node.example.org --host 192.0.2.7 --user alice --days 30",
    )
)
def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of the files; created if it does not exist.")
    ],
    *,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Host name or address of the node, in addition to localhost; can be repeated."
        ),
    ] = None,
    user: Annotated[
        str, typer.Option(metavar="NAME", help="User of the client certificate: one of the node's users.")
    ] = "Administrator",
    days: Annotated[
        int, typer.Option(min=1, max=3650, metavar="N", help="Days for which the certificates are valid.")
    ] = 365,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create a certificate authority for development, a node certificate and a client certificate.

    Writes ca.pem, server.pem and client.pem, each with a key file (ca.key, …) that
    only its owner can read. Keep ca.key secret: your nodes and clients trust every
    certificate that it signs. With --json, prints {"ca": …, "server": …,
    "server_key": …, "client": …, "client_key": …, "user": …, "expires": …}.
    """
    from penstock.node.auth.certificates import make_certificates

    names = [f"{name}.{ending}" for name in ("ca", "server", "client") for ending in ("pem", "key")]
    there = [name for name in names if (directory / name).exists()]
    if there and not force:
        raise UsageError(f"{directory / there[0]} exists; --force replaces all files")
    now = datetime.now(UTC).replace(microsecond=0)
    made = make_certificates(host or [], user, days, now)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, one in made.items():
            _write_file(directory / f"{name}.key", one.key, 0o600)
            _write_file(directory / f"{name}.pem", one.certificate, 0o644)
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
        print_text(
            format_json_line({name: str(path) for name, path in files.items()} | {"user": user, "expires": expires})
        )
    else:
        _print_commands(files, user, days)


def _write_file(path: Path, content: bytes, mode: int) -> None:
    """Replace a file. The new file has its mode from the start, so no other user can open it in between."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    Directory(path.parent).sync_names()


def _print_commands(files: dict[str, Path], user: str, days: int) -> None:
    quoted = {name: shlex.quote(str(path)) for name, path in files.items()}
    inside = {name: quote(str(path)) for name, path in files.items()}
    node = f"--tls-cert {quoted['server']} --tls-key {quoted['server_key']} --tls-client-ca {quoted['ca']}"
    client = f"couchbases://localhost/default?ca={inside['ca']}"
    shown = f"&certificate={inside['client']}&certificateKey={inside['client_key']}"
    print_text(f"Made {', '.join(map(str, files.values()))}; valid for {days} days.")
    print_text(f"A node:    penstock serve --tls-port {TLS_PORT} {node}")
    print_text(f"A client:  {client}")
    print_text(f"as {user}, without a password:  {client}{shown}")
