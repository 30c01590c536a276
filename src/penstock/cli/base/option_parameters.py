"""Conversion of declared options (penstock.options) into parameters of a Typer command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from typing import Annotated, Any, Optional, get_args, get_origin

import typer

from penstock.options import Option, list_options


def add_options(
    parameter: str, owner: type, *, only_given: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace one parameter of a command by the options that a class declares.

    The command receives the values in that parameter, as a dict by field name without the values that are None.

    Args:
        parameter: the name of the command's parameter.
        owner: the class that declares the options.
        only_given: omit defaults from the dict, and show them in --help only.

    Returns:
        A decorator for the command.
    """

    def change(command: Callable[..., None]) -> Callable[..., None]:
        options = list(list_options(owner).values())
        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for each in signature.parameters.values():
            if each.name == parameter:
                parameters += [_make_parameter(option, only_given=only_given) for option in options]
            else:
                parameters.append(each)

        def run(*arguments: Any, **given: Any) -> None:
            values = {option.name: _scale_value(option, given.pop(option.name)) for option in options}
            given[parameter] = {name: value for name, value in values.items() if value is not None}
            command(*arguments, **given)

        run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
        set_parameters(run, parameters)
        return run

    return change


def set_parameters(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> None:
    """Set the parameters that Typer reads from a function: both its signature and its annotations."""
    command.__dict__["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {each.name: each.annotation for each in parameters}


def make_annotation(option: Option, *, required: bool = False, shown: str | bool = False) -> Any:
    """Return the annotation of a parameter for an option.

    Args:
        option: the declared option.
        required: the parameter never is None.
        shown: the default in --help: a text, or True for the parameter's own default.
    """
    takes = option.option_type
    kind = list[get_args(takes.value)[0]] if get_origin(takes.value) is tuple else takes.value  # type: ignore[misc]
    declared = typer.Option(
        option.flag,
        metavar=takes.metavar if kind is not bool else None,
        min=takes.low,
        max=takes.high,
        envvar=option.environment,
        help=f"{option.doc[0].upper()}{option.doc[1:]}.",
        show_default=shown,
        autocompletion=(lambda: takes.words) if takes.words else None,
    )
    return Annotated[kind if required else Optional[kind], declared]  # noqa: UP045 - the type is computed


def _make_parameter(option: Option, *, only_given: bool) -> inspect.Parameter:
    is_valued = not only_given and option.shown is None and option.default not in (None, MISSING)
    default = option.default if is_valued else None
    shown: str | bool = is_valued
    if option.shown is not None or (only_given and option.default is not None):
        shown = option.default_text
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=make_annotation(option, required=is_valued, shown=shown),
    )


def _scale_value(option: Option, given: Any) -> Any:
    return given if given is None or option.option_type.scale is None else given * option.option_type.scale
