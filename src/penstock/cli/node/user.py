"""`penstock user`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.base.app import AsJson, Panel, app, examples
from penstock.cli.base.show import json_line, one_line
from penstock.errors import UsageError

commands = typer.Typer(help="Say who may use a node, and what for.", no_args_is_help=False, rich_markup_mode="rich")
app.add_typer(commands, name="user", rich_help_panel=Panel.NODE)

UsersPath = Annotated[
    Path,
    typer.Option("--users", envvar="PENSTOCK_USERS", metavar="FILE", help="The file of users, as `serve --users`."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]

_MOST_BYTES = 1024  # of a file with a password; what is longer is another file
_NAME_WIDTH = 128


@commands.callback(invoke_without_command=True)
def user(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@commands.command(
    epilog=examples(
        "penstock user add alice --role 'data_reader[beer]' --role 'data_writer[beer:tasting]' --users users.json",
        "penstock user add spark --role 'stream_reader[*]' --password-file secret.txt --users users.json",
        "penstock user add beer --role 'stream_reader[beer]' --no-password --users users.json",
        "pass show penstock | penstock user add root --role admin --password-file - --users users.json",
    )
)
def add(
    name: Name,
    *,
    role: Annotated[
        list[str],
        typer.Option(
            metavar="ROLE",
            help="data_reader, data_writer or stream_reader, each with [*], [BUCKET], [BUCKET:SCOPE] or "
            "[BUCKET:SCOPE:COLLECTION] behind; replicator with [*] or [BUCKET]; admin. May be given again.",
        ),
    ],
    users: UsersPath,
    password_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Has the password in its only line; - is standard input.", show_default="ask for it"
        ),
    ] = None,
    no_password: Annotated[
        bool,
        typer.Option(
            "--no-password",
            help="Let anybody log in as this user, with an empty password: for tools of Couchbase 2.x, whose user is "
            "named like the bucket.",
        ),
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Give a user that is there all this anew.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add a user, or give one another password and other roles.

    The file is made if it is not there. It holds no password, only what a node checks one with. A node notices that it
    has changed within a second. Passwords are asked for, or read from a file: on a command line others could see them.
    """
    from penstock.node.auth.roles import User
    from penstock.node.auth.users import account_of, proper_name
    from penstock.node.auth.users_file import change_users

    made = User.of(proper_name(name), role)
    _refuse_another(users, made.name, replace)
    if no_password and password_file is not None:
        raise UsageError("--no-password and --password-file, expected one of them")
    account = account_of(made, None if no_password else _password(password_file))
    with change_users(users) as accounts:
        if made.name in accounts and not replace:
            raise _there_is(made.name, users)
        accounts[made.name] = account
    shown = [str(one) for one in made.roles]
    print(json_line({"user": made.name, "roles": shown}) if as_json else f"{made.name}: {' '.join(shown)}")


@commands.command("list", epilog=examples("penstock user list --users users.json", "penstock user list --json"))
def list_users(*, users: UsersPath, as_json: AsJson = False) -> None:
    """Show the users and their roles. With --json a line is one user: {"user": …, "roles": […]}."""
    from penstock.node.auth.users_file import read_users

    accounts, _ = read_users(users)
    rows = [(name, [str(role) for role in account.user.roles]) for name, account in sorted(accounts.items())]
    names = [one_line(name.encode(), _NAME_WIDTH) for name, _ in rows]
    for (name, roles), shown in zip(rows, names, strict=True):
        width = max(map(len, names))
        print(json_line({"user": name, "roles": roles}) if as_json else f"{shown:{width}}  {' '.join(roles)}")


@commands.command(epilog=examples("penstock user remove alice --users users.json"))
def remove(name: Name, *, users: UsersPath, as_json: AsJson = False) -> None:
    """Remove a user. A node lets them log in no more."""
    from penstock.node.auth.users import proper_name
    from penstock.node.auth.users_file import change_users, read_users

    read_users(users)  # says so if there is none, and makes none
    name = proper_name(name)
    with change_users(users) as accounts:
        if accounts.pop(name, None) is None:
            raise UsageError(f"no user {name!r} in {users}; there is {', '.join(sorted(accounts)) or 'none'}")
    print(json_line({"removed": name}) if as_json else f"Removed {name}.")


def _refuse_another(users: Path, name: str, replace: bool) -> None:
    """Raise UsageError if there is such a user: before anybody thinks of a password for nothing."""
    from penstock.node.auth.users_file import read_users

    if users.exists() and name in read_users(users)[0] and not replace:
        raise _there_is(name, users)


def _there_is(name: str, users: Path) -> UsageError:
    return UsageError(f"there is a user {name!r} in {users}; --replace gives them another password and other roles")


def _password(path: str | None) -> str:
    """Return the new password: from a file, from standard input, or from whoever is at the terminal."""
    if path is None and sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    if path is None or path == "-":
        return _only_line(sys.stdin.buffer.read(_MOST_BYTES + 2), "standard input")
    try:
        with open(path, "rb") as file:
            return _only_line(file.read(_MOST_BYTES + 2), path)
    except OSError as error:
        raise UsageError(f"{path}: the password cannot be read: {error.strerror or error}") from error


def _only_line(content: bytes, where: str) -> str:
    """Return the text of one line, without its end. Raises UsageError, which shows nothing of it."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"{where}: the password is not UTF-8") from None
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{where}: more than {_MOST_BYTES} bytes, expected a password")
    if len(lines) != 1:
        raise UsageError(f"{where}: {len(lines)} lines, expected one: the password")
    return lines[0]
