"""Declared options as parameters of a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING
from typing import Annotated, Any, Optional

import typer

from penstock.options import Option, options_of

__all__ = ["annotation_of", "takes_options"]


def takes_options(
    parameter: str, owner: type, *, only_given: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that a class declares, in the place of one parameter.

    The parameter gets a dict of their values by field name; what is None is left out.

    Args:
        parameter: the name of the command's parameter.
        owner: the class that declares the options.
        only_given: defaults are left out too, and only shown.
    """

    def change(command: Callable[..., None]) -> Callable[..., None]:
        options = list(options_of(owner).values())
        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for each in signature.parameters.values():
            if each.name == parameter:
                parameters += [_parameter_of(option, only_given=only_given) for option in options]
            else:
                parameters.append(each)

        def run(*arguments: Any, **given: Any) -> None:
            values = {option.name: _value(option, given.pop(_name(option))) for option in options}
            given[parameter] = {name: value for name, value in values.items() if value is not None}
            command(*arguments, **given)

        run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return change


def annotation_of(option: Option, *, required: bool = False, shown: str | bool = False) -> Any:
    """Return the annotation of a parameter that takes an option. shown: the default in words, True for its value."""
    takes = option.takes
    kind = list[str] if takes.value == tuple[str, ...] else takes.value
    declared = typer.Option(
        option.flag,
        metavar=takes.metavar if kind is not bool else None,
        min=takes.low,
        max=takes.high,
        envvar=option.environment,
        help=f"{option.doc[0].upper()}{option.doc[1:]}.",
        show_default=shown,
    )
    return Annotated[kind if required else Optional[kind], declared]  # noqa: UP045 - a type that is made here


def _parameter_of(option: Option, *, only_given: bool) -> inspect.Parameter:
    is_valued = not only_given and option.shown is None and option.default not in (None, MISSING)
    default = option.default if is_valued else None
    shown: str | bool = is_valued
    if only_given or option.shown is not None:
        shown = option.default_text
    return inspect.Parameter(
        _name(option),
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=annotation_of(option, required=is_valued, shown=shown),
    )


def _name(option: Option) -> str:
    return option.flag.removeprefix("--").replace("-", "_")


def _value(option: Option, given: Any) -> Any:
    return given if given is None or option.takes.scale is None else given * option.takes.scale
