"""``--restart-strategy`` and ``--restart KEY=VALUE`` of ``sluice submit``."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

import msgspec
import typer

from sluice.cli.errors import UsageError
from sluice.runtime import RestartStrategy, RestartWish

StrategyOption = Annotated[
    RestartStrategy | None,
    typer.Option("--restart-strategy", help="What happens when the job fails; default: the cluster's [restart]."),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--restart", help="Setting of the restart strategy KEY=VALUE, such as attempts=5; repeatable."),
]


def restart_wish(strategy: RestartStrategy | None, settings: list[str]) -> dict[str, Any]:
    """The ``restart`` of a submission; raises :class:`UsageError` naming an invalid setting."""
    wish: dict[str, Any] = {}
    if strategy is not None:
        wish["strategy"] = strategy.value
    known = [name for name in RestartWish.__struct_fields__ if name != "strategy"]
    for setting in settings:
        key, separator, value = setting.partition("=")
        name = key.replace("-", "_")
        if not separator or name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise UsageError(
                f"--restart {setting!r} is not a setting", f"one of {', '.join(near or known)}, as KEY=VALUE"
            )
        wish[name] = value
    try:
        converted = msgspec.convert(wish, RestartWish, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"--restart: {error}", "see docs/reference/jobs.md") from error
    return {name: value for name, value in msgspec.to_builtins(converted).items() if value is not None}
