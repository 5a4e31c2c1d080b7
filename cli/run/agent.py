"""``sluice pki agent``: the agent of a node, in the foreground."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.options import (
    DEFAULT_HOME,
    ConfigOption,
    HomeOption,
    JsonOption,
    load_configuration,
)
from sluice.cli.run.joining import (
    AgentTokensOption,
    CaOption,
    agent_tokens,
    joining,
)


def agent(
    policy: Annotated[Path, typer.Option(help="TOML file: which user id gets which identity.")],
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    socket: Annotated[
        Path | None, typer.Option(help="Unix socket to serve on; default: agent.sock among the home's, for its owner.")
    ] = None,
    ca: CaOption = None,
    join_token_file: AgentTokensOption = None,
    check: Annotated[bool, typer.Option("--check", help="Only check the policy and show what it says.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Renew identities, and serve the SPIFFE Workload API and Envoy SDS on a unix socket.

    The kernel reports the user id of a caller; the policy says which identities this user gets. Other users get
    nothing. Runs until SIGTERM.

    With --ca the identities are certified by an online CA on another machine, and what is trusted comes from there;
    otherwise the home's authorities sign.
    """
    from sluice.cli.serving import serve
    from sluice.core import utc_now
    from sluice.pki.agent import Agent, load_policy, run_agent
    from sluice.pki.enrolment import joined_agent
    from sluice.pki.issuing import LocalIssuer
    from sluice.pki.jwt import LocalJwtAuthority

    located, configuration = load_configuration(home, config)
    settings = configuration.pki
    loaded = load_policy(policy, settings, located.pki / "identities")
    path = (socket or located.sockets / "agent.sock").absolute()
    if check:
        lines = [
            {
                "identity": str(one.spiffe_id),
                "directory": str(one.directory),
                "uids": sorted(one.uids),
                "audiences": sorted(one.audiences),
            }
            for one in loaded.identities
        ]
        if as_json:
            typer.echo(json.dumps({"socket": str(path), "identities": lines}))
            return
        for line in lines:
            typer.echo(
                f"{line['identity']} -> uids {line['uids']}, audiences {line['audiences']}, in {line['directory']}"
            )
        return
    jwt = LocalJwtAuthority(located.pki, settings.trust_domain, utc_now, algorithm=settings.token_algorithm)
    join = joining(ca, None, None, None)
    if join is None:
        serve(run_agent(Agent(loaded, LocalIssuer(located, settings), jwt, settings.trust_domain, path)))
        return
    tokens = agent_tokens(join_token_file or [], loaded, settings.trust_domain)
    serve(joined_agent(located, join.locate, loaded, settings, tokens, jwt, path))
