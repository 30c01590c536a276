"""The options that name the source of a password. Each table, format and sink with a password has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.client.login.secret_sources import SecretSource, choose_secret
from penstock.errors import UsageError
from penstock.options import COMMAND, FILE, nonempty, option, read_shared_values

REFERENCE = nonempty("PROVIDER:REFERENCE", metavar="PROVIDER:REFERENCE")
"""A provider of secrets, and its reference for the secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordOptions:
    """The source of a password: one of these options."""

    password_file: str | None = option(
        FILE, "file whose only line is the password", default=None, example="/run/secrets/dcp"
    )
    password_command: tuple[str, ...] | None = option(
        COMMAND,
        "program and arguments, run without a shell; the first line of its output is the password",
        default=None,
        example="op read op://vault/beer/password",
    )
    password_from: str | None = option(
        REFERENCE,
        "an installed provider of secrets, and its reference for the secret",
        default=None,
        example="vault:secret/beer",
    )


def choose_password(
    declared: Any, *, spell: Callable[[str], str] = str, **more: str | None
) -> str | SecretSource | None:
    """Return the password of an object that shares these options, or its source.

    Args:
        declared: the object.
        spell: returns an option's name for errors.
        more: further options of the object for the same password, by field name.

    Returns:
        None if no option was given.

    Raises:
        UsageError: several options were given.
    """
    given = {**more, **read_shared_values(declared, PasswordOptions)}
    command = given.get("password_command")
    if command is not None and not (command and command[0]):
        raise UsageError(f"{spell('password_command')} has no program, expected one with its arguments")
    return choose_secret({spell(name): value for name, value in given.items()})
