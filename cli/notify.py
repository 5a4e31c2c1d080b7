"""``sluice notify``: tests whether notifications arrive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.cli.errors import EXIT_NO, UsageError
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.tables import print_table
from sluice.core import SluiceError, utc_now

if TYPE_CHECKING:
    from sluice.runtime.notify import NotifyConfig

app = typer.Typer(
    no_args_is_help=True,
    help="Notifications by webhook and e-mail, which the leading JobManager sends as [notify] in sluice.toml says.",
)


@app.callback()
def _notify() -> None:
    """Keep the only verb of this group a verb."""


@app.command("test", epilog="Examples: sluice notify test; sluice notify test ops-mail --json")
def send_test(
    receivers: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Receivers to try; default: all.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a test notification from this machine to the receivers of [notify], and say who has confirmed it.

    Exit codes: 0 all have confirmed, 1 somebody has not, 2 no such receiver, or none is configured.
    """
    _, loaded = load_configuration(home, config)
    known = [each.name for each in loaded.notify.receivers]
    if not known:
        raise UsageError("nobody is to be notified", "add [[notify.webhooks]] or [[notify.mails]] to sluice.toml")
    wanted = list(dict.fromkeys(receivers or known))
    if unknown := [name for name in wanted if name not in known]:
        raise UsageError(f"there is no receiver {unknown[0][:64]!r}", f"known: {', '.join(known)}")
    results = asyncio.run(_send(loaded.notify, loaded.pki.trust_domain, wanted))
    if as_json:
        print(json.dumps([{"receiver": name, "delivered": ok, "problem": problem} for name, ok, problem in results]))
    else:
        rows = [(name, "delivered" if ok else "not delivered", problem) for name, ok, problem in results]
        print_table(("RECEIVER", "RESULT", "PROBLEM"), rows)
    if not all(ok for _, ok, _ in results):
        raise typer.Exit(EXIT_NO)


async def _send(config: NotifyConfig, cluster: str, names: Sequence[str]) -> list[tuple[str, bool, str]]:
    from sluice.runtime.notify import (  # late: --help does not need an HTTP client
        Message,
        Receiver,
        sample_event,
        sender_of,
    )

    now = utc_now().timestamp()
    message = Message(cluster, (sample_event(now),), now)

    async def one(receiver: Receiver) -> tuple[str, bool, str]:
        try:
            return receiver.name, True, await sender_of(receiver).send(message)
        except (SluiceError, OSError) as error:
            remedy = f" ({error.remedy})" if isinstance(error, SluiceError) and error.remedy else ""
            return receiver.name, False, f"{error.what if isinstance(error, SluiceError) else error}{remedy}"

    return await asyncio.gather(*(one(each) for each in config.receivers if each.name in names))
