"""``sluice jobs`` with all its verbs."""

from __future__ import annotations

from sluice.cli.jobs.commands import app
from sluice.cli.jobs.exceptions import exceptions
from sluice.cli.jobs.job_table import history
from sluice.cli.jobs.receipts import receipt, verify_receipt
from sluice.cli.jobs.savepoints import checkpoints, savepoint

__all__ = ["app"]

app.command(epilog="Example: sluice jobs history --state FAILED --owner ada")(history)
app.command()(exceptions)
app.command()(checkpoints)
app.command()(savepoint)
app.command(epilog="Example: sluice jobs receipt 3f9c --output receipt.json")(receipt)
app.command("verify-receipt", epilog="Example: sluice jobs verify-receipt receipt.json --trust root.pem --file etl.py")(
    verify_receipt
)
