"""``sluice compose``: the cluster as containers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.compose.choices import ENVOY_IMAGE
from sluice.cli.errors import UsageError
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.pki import print_json
from sluice.core import write_public

DEFAULT_TOKENS = Path("/run/join")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The cluster as containers: write a set of files for docker compose, and what its authority runs.",
)

TokensOption = Annotated[
    Path, typer.Option("--tokens", metavar="DIR", help="Where each process has a directory DIR/NAME for its token.")
]


@app.command(epilog="Example: sluice compose init site --taskmanagers 5 --host cluster.example.org --address 0.0.0.0")
def init(
    directory: Annotated[Path, typer.Argument(help="Directory for the files; made when it is not there.")],
    name: Annotated[str, typer.Option(help="Name of the compose project.")] = "sluice",
    taskmanagers: Annotated[int, typer.Option(help="TaskManagers.")] = 3,
    slots: Annotated[int, typer.Option(help="Slots of each TaskManager.")] = 2,
    slot_memory: Annotated[int, typer.Option(help="Heap of an executor in MiB.")] = 768,
    driver_slots: Annotated[int, typer.Option(help="Drivers that a TaskManager runs at a time.")] = 2,
    address: Annotated[str, typer.Option(help="Address of this machine to publish the gateway on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The gateway's port, the only one that is published.")] = 8443,
    host: Annotated[str, typer.Option(help="Host name of the gateway for its clients.")] = "localhost",
    certificate: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="Directory of the machine with fullchain.pem and privkey.pem, a certificate of another authority for "
            "--host. Both must belong to user 10001, the key with mode 0600.",
        ),
    ] = "",
    image: Annotated[str, typer.Option(help="Image of all services but Envoy.")] = "sluice:local",
    envoy_image: Annotated[str, typer.Option(help="Image of Envoy.")] = ENVOY_IMAGE,
    shuffle_workers: Annotated[int, typer.Option(help="ShuffleWorkers; 0: Spark's own shuffle is used.")] = 2,
    jobmanagers: Annotated[int, typer.Option(help="JobManagers; of several one leads, elected by ZooKeeper.")] = 2,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write compose.yaml, sluice.toml, .env and seccomp.json, and into image/ what their image is built from.

    No key and no token is among them: those are made in the containers. In a checkout, `make compose-image` builds the
    image, and there is no image/.
    """
    from sluice.cli.compose.choices import ComposeSet
    from sluice.cli.compose.files import render_compose, seccomp_profile
    from sluice.cli.compose.image_context import image_files
    from sluice.cli.compose.services import SECCOMP_FILE
    from sluice.cli.compose.settings import render_environment, render_settings

    chosen = ComposeSet(
        name=name,
        taskmanagers=taskmanagers,
        slots=slots,
        slot_memory_mb=slot_memory,
        driver_slots=driver_slots,
        address=address,
        port=port,
        host=host,
        image=image,
        envoy_image=envoy_image,
        shuffle_workers=shuffle_workers,
        jobmanagers=jobmanagers,
        certificate=certificate,
    )
    files = {
        "compose.yaml": render_compose(chosen).encode(),
        "sluice.toml": render_settings(chosen).encode(),
        ".env": render_environment(chosen).encode(),
        SECCOMP_FILE: seccomp_profile().encode(),
    }
    built_from = image_files()
    files |= {f"image/{file}": content for file, content in (built_from or {}).items()}
    there = [file for file in files if (directory / file).exists()]
    if there and not force:
        raise UsageError(f"{directory} has {', '.join(there)} already", "choose another directory, or use --force")
    (directory / "image" if built_from else directory).mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        write_public(directory / file, content)
    if as_json:
        print_json({"directory": str(directory), "files": list(files)})
        return
    build = f"docker build -t {shlex.quote(image)} {shlex.quote(str(directory / 'image'))}"
    typer.echo(f"wrote {', '.join(files)} into {directory}")
    typer.echo(f"build the image: {build if built_from else 'make compose-image, in the source tree'}")
    typer.echo("start it there: docker compose up -d")


@app.command()
def ca(
    invite: Annotated[
        list[str],
        typer.Option(
            "--invite", metavar="ROLE/NAME[=HOST,…]", help="Process that may join, with its host names; repeatable."
        ),
    ],
    tokens: TokensOption = DEFAULT_TOKENS,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
) -> None:
    """Run the container of the authority: create missing authorities, create join tokens for missing processes, serve.

    Processes that have joined, according to the ledger, get no further token.
    """
    from sluice.cli.cluster import prepare_authorities
    from sluice.cli.compose.invitations import Invitation, invite as write_tokens, joined_already
    from sluice.cli.serving import serve
    from sluice.core import utc_now
    from sluice.pki.ca import DEFAULT_NAME, run_ca

    located, configuration = load_configuration(home, config)
    wanted = [Invitation.parse(each, configuration.pki.trust_domain) for each in invite]
    located.create()
    for line in prepare_authorities(located, configuration):
        typer.echo(line, err=True)
    joined = joined_already(located)
    missing = [each for each in wanted if str(each.spiffe_id) not in joined]
    write_tokens(located, missing, tokens, now=utc_now())
    for each in missing:
        typer.echo(f"invited {each.spiffe_id}", err=True)
    serve(run_ca(located, configuration.pki, configuration.ca, DEFAULT_NAME))


@app.command("invite", epilog="Example: docker compose exec ca sluice compose invite taskmanager/tm-2=tm-2")
def invite_again(
    who: Annotated[str, typer.Argument(metavar="ROLE/NAME[=HOST,…]", help="As in --invite of the authority.")],
    tokens: TokensOption = DEFAULT_TOKENS,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create another join token for a process that lost its home or came too late for the first."""
    from sluice.cli.compose.invitations import Invitation, invite as write_tokens
    from sluice.core import utc_now

    located, configuration = load_configuration(home, config)
    invitation = Invitation.parse(who, configuration.pki.trust_domain)
    (path,) = write_tokens(located, [invitation], tokens, now=utc_now())
    if as_json:
        print_json({"identity": str(invitation.spiffe_id), "token_file": str(path)})
        return
    typer.echo(f"wrote a token for {invitation.spiffe_id} to {path}")
