"""``sluice jobs`` with all its verbs."""

from __future__ import annotations

from sluice.cli.jobs.commands import app
from sluice.cli.jobs.exceptions import exceptions
from sluice.cli.jobs.savepoints import checkpoints, savepoint

__all__ = ["app"]

app.command()(exceptions)
app.command()(checkpoints)
app.command()(savepoint)
