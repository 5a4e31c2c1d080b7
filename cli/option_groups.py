"""Groups of options, declared once, which a command receives as one value."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

Command = Callable[..., None]


def option_group(
    parameter: str, group: Callable[..., object], options: Mapping[str, tuple[Any, object]]
) -> Callable[[Command], Command]:
    """A decorator that replaces a command's ``parameter`` by ``options`` on the command line.

    Args:
        parameter: name of the command's parameter, which receives ``group(**values)``.
        group: makes one value of the values of all options.
        options: name -> annotation, as typer reads it, and default.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for each in signature.parameters.values():
            if each.name != parameter:
                parameters.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY))
                continue
            parameters += [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
                for name, (annotation, default) in options.items()
            ]

        @functools.wraps(command)
        def run(**values: Any) -> None:  # noqa: ANN401  what typer has read
            chosen = group(**{name: values.pop(name) for name in options})
            command(**values, **{parameter: chosen})

        # Typer reads the options from the signature.
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate
