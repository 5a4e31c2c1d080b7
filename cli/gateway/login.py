"""``sluice login``, ``logout`` and ``whoami``: sign in at the gateway with a browser (RFC 8628)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import aiohttp
import typer

from sluice.cli.errors import RefusedError, UnreachableError
from sluice.cli.gateway.times import utc_text
from sluice.cli.gateway_options import CaOption, GatewayOptions, ServerOption, through_gateway
from sluice.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from sluice.client import describe_connection_error, fingerprints, locate_gateway, login_session
from sluice.core import BodyTooLarge, Home, read_body, tcp_connector
from sluice.pki.tls import EdgeTrust

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:device_code"
MAX_ANSWER_BYTES = 64 << 10
TIMEOUT = aiohttp.ClientTimeout(total=30)
SLOW_DOWN_SECONDS = 5


def login(
    home: HomeOption = DEFAULT_HOME,
    server: ServerOption = None,
    ca: CaOption = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser on this machine.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Sign in at the gateway: open a page in any browser, and confirm the code that is shown here.

    The credential goes into the configuration directory of this user (mode 0600), one for each gateway. Every verb
    uses it by itself, unless SLUICE_TOKEN or --token-file names another one.
    """
    url, ca_file = _gateway(home, server, ca)
    credential = asyncio.run(_sign_in(url, ca_file, open_browser=browser))
    path = login_session.save(credential)
    if as_json:
        expires = utc_text(credential.expires_at)
        document = {"name": credential.name, "session": credential.session, "server": url, "expires_at": expires}
        typer.echo(json.dumps({**document, "file": str(path)}))
    else:
        typer.echo(f"signed in at {url} as {credential.name}, until {utc_text(credential.expires_at)}")


def logout(
    home: HomeOption = DEFAULT_HOME, server: ServerOption = None, ca: CaOption = None, as_json: JsonOption = False
) -> None:
    """End the session of `sluice login`, at the gateway and on this machine."""
    url, ca_file = _gateway(home, server, ca)
    found = login_session.find(url)
    if found is not None:
        try:
            asyncio.run(_sign_out(url, ca_file, found.secret))
        finally:
            # If the gateway cannot be reached, the session expires there by itself; here it ends now.
            login_session.forget(url)
    if as_json:
        typer.echo(json.dumps({"server": url, "session": None if found is None else found.session}))
    else:
        typer.echo(f"signed out at {url}" if found else f"was not signed in at {url}")


@through_gateway
def whoami(
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Show the principal that the gateway sees: name, roles, groups and credential."""
    me = gateway.get("/auth/whoami")
    if as_json:
        typer.echo(json.dumps(me))
        return
    for key in ("name", "roles", "groups", "scopes", "method", "credential"):
        value = me[key]
        typer.echo(f"{key + ':':<12}{', '.join(value) or '-' if isinstance(value, list) else value}")


async def _sign_in(url: str, ca_file: Path | None, *, open_browser: bool) -> login_session.LoginSession:
    async with _Form(url, ca_file) as form:
        begun = await form.post("/auth/device", {})
        page = url + str(begun["verification_uri_complete"])
        # On standard error: with --json, standard output is one document.
        typer.echo(f"Open {page}", err=True)
        typer.echo(f"and confirm that it shows the code {begun['user_code']}", err=True)
        if open_browser:
            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(page)
        interval, deadline = float(begun["interval"]), time.monotonic() + float(begun["expires_in"])
        while time.monotonic() < deadline:
            await asyncio.sleep(interval)
            got = await form.post("/auth/device/token", {"grant_type": GRANT_TYPE, "device_code": begun["device_code"]})
            match got.get("error"):
                case None:
                    return login_session.LoginSession(
                        server=url,
                        name=str(got["name"]),
                        session=str(got["session"]),
                        secret=str(got["access_token"]),
                        expires_at=time.time() + float(got["expires_in"]),
                        authorities=None if ca_file is None else tuple(sorted(fingerprints(ca_file))),
                    )
                case "authorization_pending":
                    pass
                case "slow_down":
                    interval += SLOW_DOWN_SECONDS
                case "access_denied":
                    raise RefusedError("the sign-in was refused in the browser")
                case _:
                    break
    raise UnreachableError("the code was not confirmed in time", "run `sluice login` again")


async def _sign_out(url: str, ca_file: Path | None, secret: str) -> None:
    async with _Form(url, ca_file) as form:
        await form.post("/auth/logout", {}, {"authorization": f"Bearer {secret}"})


class _Form:
    """Posts forms to the gateway and reads small JSON answers."""

    def __init__(self, url: str, ca_file: Path | None) -> None:
        self._url = url
        self._trust = EdgeTrust(ca_file)
        self._session = aiohttp.ClientSession(
            connector=tcp_connector(), timeout=TIMEOUT, cookie_jar=aiohttp.DummyCookieJar()
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def post(
        self, path: str, form: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Mapping[str, Any]:
        """Post a form; returns the answer's document, empty when it is a redirect."""
        try:
            async with self._session.post(
                self._url + path, data=dict(form), headers=headers, ssl=self._trust.context(), allow_redirects=False
            ) as answer:
                body = await read_body(answer.content, MAX_ANSWER_BYTES)
                if 300 <= answer.status < 400:
                    return {}
                document = json.loads(body)
                # RFC 6749 section 5.2 answers "not yet" with 400 and a field `error`.
                if answer.status != 200 and "error" not in document:
                    raise UnreachableError(f"{path}: {document.get('detail', answer.status)}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(
                f"cannot reach the gateway at {self._url}: {describe_connection_error(error)}",
                "is it running? see `sluice status`",
            ) from error
        except (BodyTooLarge, ValueError, AttributeError, TypeError) as error:
            raise UnreachableError(f"{self._url}{path} gave an unexpected answer", "is it the gateway?") from error
        answered: Mapping[str, Any] = document
        return answered


def _gateway(home: Path, server: str | None, ca: Path | None) -> tuple[str, Path | None]:
    return locate_gateway(Home.at(home), server, ca)
