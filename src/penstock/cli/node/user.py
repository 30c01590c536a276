"""`penstock user`: manage the users of a node."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.base.app import AsJson, Panel, UsersPath, app, format_examples
from penstock.cli.base.show import format_json_line, format_name, print_text
from penstock.errors import UsageError
from penstock.text_files import read_text

commands = typer.Typer(
    help="Manage the users of a node and their roles.", no_args_is_help=False, rich_markup_mode="rich"
)
app.add_typer(commands, name="user", rich_help_panel=Panel.NODE)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]

_NAME_WIDTH = 128


@commands.callback(invoke_without_command=True)
def user(context: typer.Context) -> None:  # noqa: D103 - a docstring would replace the group's help
    if context.invoked_subcommand is None:
        print(context.get_help())


@commands.command(
    epilog=format_examples(
        "penstock user add alice --role 'data_reader[beer]' --role 'data_writer[beer:tasting]' --users users.json",
        "penstock user add spark --role 'data_dcp_reader[*]' --password-file secret.txt --users users.json",
        "penstock user add beer --role 'data_dcp_reader[beer]' --no-password --users users.json",
        "penstock user add prometheus --role external_stats_reader --password-file prometheus.txt --users users.json",
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
            help="data_reader, data_writer or data_dcp_reader, followed by [*], [BUCKET], [BUCKET:SCOPE] or "
            "[BUCKET:SCOPE:COLLECTION]; replication_target, followed by [*] or [BUCKET]; external_stats_reader or "
            "admin. Can be repeated.",
        ),
    ],
    users: UsersPath,
    password_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="File with the password in one line; - reads standard input.", show_default="prompt"
        ),
    ] = None,
    no_password: Annotated[
        bool,
        typer.Option(
            "--no-password",
            help="Allow login with an empty password, for tools of Couchbase 2.x, whose user has the bucket's name.",
        ),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the password and roles of an existing user.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add a user, or replace the password and roles of a user.

    Creates the file if it does not exist. The file contains no passwords, only the
    data that verify them. A running node reads a changed file within a second. The
    password is read from a prompt or a file: other users could see a command line.
    """
    from penstock.node.auth.roles import User
    from penstock.node.auth.users import make_account, normalize_name
    from penstock.node.auth.users_file import change_users

    made = User.from_texts(normalize_name(name), role)
    path = Path(users)
    _check_new_user(path, made.name, replace)
    if no_password and password_file is not None:
        raise UsageError("--no-password cannot be combined with --password-file")
    account = make_account(made, None if no_password else _read_password(password_file))
    with change_users(path) as accounts:
        if made.name in accounts and not replace:
            raise _make_exists_error(made.name, path)
        accounts[made.name] = account
    shown = [str(one) for one in made.roles]
    print_text(
        format_json_line({"user": made.name, "roles": shown})
        if as_json
        else f"{format_name(made.name)}: {' '.join(shown)}"
    )


@commands.command("list", epilog=format_examples("penstock user list --users users.json", "penstock user list --json"))
def list_users(*, users: UsersPath, as_json: AsJson = False) -> None:
    """List the users and their roles. With --json, each line is one user: {"user": …, "roles": […]}."""
    from penstock.node.auth.users_file import read_users

    accounts, _ = read_users(Path(users))
    rows = [(name, [str(role) for role in account.user.roles]) for name, account in sorted(accounts.items())]
    names = [format_name(name, _NAME_WIDTH) for name, _ in rows]
    for (name, roles), shown in zip(rows, names, strict=True):
        width = max(map(len, names))
        print_text(
            format_json_line({"user": name, "roles": roles}) if as_json else f"{shown:{width}}  {' '.join(roles)}"
        )


@commands.command(epilog=format_examples("penstock user remove alice --users users.json"))
def remove(name: Name, *, users: UsersPath, as_json: AsJson = False) -> None:
    """Remove a user. The user can no longer log in."""
    from penstock.node.auth.users import normalize_name
    from penstock.node.auth.users_file import change_users, read_users

    read_users(Path(users))  # raises UsageError if the file does not exist; change_users would create it
    name = normalize_name(name)
    with change_users(Path(users)) as accounts:
        if accounts.pop(name, None) is None:
            raise UsageError(f"no user {name!r} in {users}; there is {', '.join(sorted(accounts)) or 'none'}")
    print_text(format_json_line({"removed": name}) if as_json else f"Removed {format_name(name)}.")


def _check_new_user(users: Path, name: str, replace: bool) -> None:
    """Raise UsageError if the user exists and `replace` is not set: before the command prompts for a password."""
    from penstock.node.auth.users_file import read_users

    if users.exists() and name in read_users(users)[0] and not replace:
        raise _make_exists_error(name, users)


def _make_exists_error(name: str, users: Path) -> UsageError:
    return UsageError(f"user {name!r} exists in {users}; --replace replaces the password and roles")


def _read_password(path: str | None) -> str:
    """Return the new password from a file, standard input, or a prompt on the terminal."""
    from penstock.client.login.secret_sources import MOST_SECRET_BYTES, parse_password, read_password_file

    if path is None and sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    if path is not None and path != "-":
        return read_password_file(path)
    text = read_text(sys.stdin.buffer, "standard input", "a password", MOST_SECRET_BYTES, is_secret=True)
    return parse_password(text, "standard input")
