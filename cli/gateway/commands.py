"""``sluice gateway``: the gateway's own configuration."""

from __future__ import annotations

import typer

from sluice.cli.gateway import acme as gateway_acme, render as gateway_render, status as gateway_status

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The gateway's own configuration.")

app.command(
    "render",
    epilog="Example: sluice gateway render --proxy nginx --out nginx; nginx -p nginx -c nginx.conf, beside `sluice run "
    "auth` and instead of `sluice run envoy` (docs/howto/nginx.md).",
)(gateway_render.render_)
app.command("status")(gateway_status.status)
app.add_typer(gateway_acme.app, name="acme")
