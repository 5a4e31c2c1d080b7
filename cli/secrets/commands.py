"""``sluice secret``: store secrets for jobs, decide which jobs get them, replace the key that encrypts them."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from sluice.cli.errors import RefusedError, UsageError
from sluice.cli.gateway_options import GatewayOptions, through_gateway
from sluice.cli.options import JsonOption
from sluice.cli.tables import print_table
from sluice.client import GatewayClient

MAX_VALUE_BYTES = 64 << 10
KINDS = ("role", "group", "user", "job")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Secrets for jobs: passwords, keys and tokens that a job reads from a file in memory.\n\n"
    "A secret is encrypted where it is stored, and nobody can read it back. A job gets it when it was granted to the "
    "job's owner, role, group or name, and its submission asks for it:\n\n"
    "sluice secret put db-password --file - < password.txt\n\n"
    "sluice secret grant db-password --to user:ada\n\n"
    "sluice submit job.py --secret db-password    # reads /run/secrets/db-password\n\n"
    "What the job prints of a value is masked in its logs, and each use is in the audit log. To replace a value, put "
    "it again: the next attempt of each job gets the new version. Needs the role admin or secret-keeper.",
)

NameArgument = Annotated[str, typer.Argument(help="Name of the secret: letters, digits, '_', '.', '-'.")]
GranteeOption = Annotated[
    list[str],
    typer.Option(
        "--to",
        help="role:ROLE, group:GROUP, user:USER, or job:OWNER/NAME (jobs of that name of that user); repeatable.",
    ),
]


@app.command(epilog="Example: sluice secret put db-password --file - < password.txt")
@through_gateway
def put(
    name: NameArgument,
    file: Annotated[
        str, typer.Option("--file", help="File with the value, taken as it is; - reads standard input. At most 64 KiB.")
    ],
    keep_newline: Annotated[
        bool, typer.Option("--keep-newline", help="Keep a line end at the end of standard input; else it is left out.")
    ] = False,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Store a new version of a secret. There is no option for the value: other processes can see command lines."""
    value = _read(file, keep_newline=keep_newline)
    view = gateway.call(lambda client: client.post_bytes(f"{_path(name)}/versions", value))
    version = view["versions"][-1]
    if as_json:
        print(json.dumps(view))
        return
    print(f"stored version {version['number']} of {name}")
    if not version["masked"]:
        print(
            "note: the value is too short or too uniform to be masked where a job prints it; use at least 8 characters",
            file=sys.stderr,
        )
    if not view["grants"]:
        print(f"no job gets it yet: sluice secret grant {name} --to user:NAME", file=sys.stderr)


@app.command("list")
@through_gateway
def list_secrets(*, gateway: GatewayOptions, as_json: JsonOption = False) -> None:
    """List secrets with their newest version and grants, without their values."""
    document = gateway.get("/v1/secrets")
    if as_json:
        print(json.dumps(document))
        return
    rows = [
        (
            each["name"],
            str(each["versions"][-1]["number"]) if each["versions"] else "-",
            _utc(each["versions"][-1]["created_at"]) if each["versions"] else "-",
            " ".join(map(_grantee, each["grants"])) or "-",
        )
        for each in document["secrets"]
    ]
    print_table(("NAME", "VERSION", "CREATED", "GRANTED TO"), rows, right=("VERSION",))


@app.command()
@through_gateway
def versions(name: NameArgument, *, gateway: GatewayOptions, as_json: JsonOption = False) -> None:
    """List the versions of a secret: who stored them, and under which key they are encrypted."""
    view = gateway.get(_path(name))
    if as_json:
        print(json.dumps(view))
        return
    rows = [
        (str(each["number"]), _utc(each["created_at"]), each["created_by"], each["key_id"], _yes(each["masked"]))
        for each in view["versions"]
    ]
    print_table(("VERSION", "CREATED", "BY", "KEY", "MASKED IN LOGS"), rows, right=("VERSION",))
    print("granted to " + (" ".join(map(_grantee, view["grants"])) or "nobody"))


@app.command(epilog="Example: sluice secret rm db-password --version 3")
@through_gateway
def rm(
    name: NameArgument,
    version: Annotated[int, typer.Option(min=0, help="Only this version; default: the secret with its grants.")] = 0,
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Remove a secret. Jobs that have it keep it until their attempt ends; no further process gets it."""
    gateway.call(lambda client: client.delete(_path(name), version=version))
    what = f"version {version} of {name}" if version else name
    print(json.dumps({"removed": name, "version": version}) if as_json else f"removed {what}")


@app.command(epilog="Example: sluice secret grant db-password --to job:ada/nightly-load --to role:reporting")
@through_gateway
def grant(name: NameArgument, to: GranteeOption, *, gateway: GatewayOptions, as_json: JsonOption = False) -> None:
    """Give a secret to jobs that ask for it. A job is named with its owner: everybody may give a job any name."""
    grants = [parse_grantee(each) for each in to]
    view = gateway.call(_each(grants, lambda client, each: client.post(f"{_path(name)}/grants", each)))
    print(json.dumps(view) if as_json else f"{name} is granted to {' '.join(map(_grantee, view['grants']))}")


@app.command(epilog="Example: sluice secret revoke db-password --to user:ada")
@through_gateway
def revoke(name: NameArgument, to: GranteeOption, *, gateway: GatewayOptions, as_json: JsonOption = False) -> None:
    """Take grants back. The next attempt of a job does not get the secret; one that runs has read it already."""
    grants = [parse_grantee(each) for each in to]
    view = gateway.call(_each(grants, lambda client, each: client.delete(f"{_path(name)}/grants", **each)))
    left = " ".join(map(_grantee, view["grants"])) or "nobody"
    print(json.dumps(view) if as_json else f"{name} is granted to {left}")


@app.command("rotate-key", epilog="With JobManagers on several machines: sluice secret new-key DIRECTORY comes first.")
@through_gateway
def rotate_key(
    to: Annotated[
        str, typer.Option("--to", help="Id of the new key; default: a new one, or the only unused one.")
    ] = "",
    *,
    gateway: GatewayOptions,
    as_json: JsonOption = False,
) -> None:
    """Encrypt the data keys of all secrets with a new key. Needs the role admin; repeat it if it is interrupted."""
    done = gateway.call(lambda client: client.post("/v1/secret-keys/rotation", {"key_id": to}))
    if as_json:
        print(json.dumps(done))
    else:
        print(f"key {done['key_id']} is in use; {done['rewrapped']} versions were wrapped again")
        for each in done["retired"]:
            print(f"key {each} is not needed any more: remove {each}.key from every JobManager that has it")
    if done["unreadable"]:
        raise RefusedError(
            f"not readable: {' '.join(done['unreadable'])}",
            "restore the old key and repeat, or put these secrets again",
        )


@app.command("new-key", epilog="Example: sluice secret new-key /etc/sluice/secret-keys")
def new_key(
    directory: Annotated[Path, typer.Argument(help="Where to write it: [secrets] keys of a JobManager.")],
    as_json: JsonOption = False,
) -> None:
    """Make a key on this machine, for clusters with JobManagers on several machines: copy the file to each of them."""
    from sluice.runtime.jobmanager.secrets import KeyRing

    key_id = KeyRing(directory, makes_keys=True).create()
    print(json.dumps({"key_id": key_id}) if as_json else f"made key {key_id} in {directory}")


def parse_grantee(text: str) -> dict[str, str]:
    """Parse ``KIND:NAME`` or ``job:OWNER/NAME`` for REST; raises :class:`UsageError`."""
    kind, _, name = text.partition(":")
    if kind not in KINDS or not name:
        raise UsageError(f"--to {text[:80]!r} is nobody", "write role:R, group:G, user:U or job:OWNER/NAME")
    if kind != "job":
        return {"kind": kind, "name": name}
    owner, _, job = name.partition("/")
    if not owner or not job:
        raise UsageError(
            f"--to {text[:80]!r} names no owner", "write job:OWNER/NAME: everybody may give a job any name"
        )
    return {"kind": kind, "owner": owner, "name": job}


def _read(file: str, *, keep_newline: bool) -> bytes:
    if file == "-":
        value = sys.stdin.buffer.read(MAX_VALUE_BYTES + 2)
        value = value if keep_newline else value.removesuffix(b"\n").removesuffix(b"\r")
    else:
        path = Path(file)
        if not path.is_file():
            raise UsageError(f"there is no file {file}", "--file - reads standard input")
        with path.open("rb") as opened:
            value = opened.read(MAX_VALUE_BYTES + 1)
    if not 0 < len(value) <= MAX_VALUE_BYTES:
        raise UsageError("the value is empty, or larger than 64 KiB", "put large data into a file of the job")
    return value


def _each(
    grants: list[dict[str, str]], ask: Callable[[GatewayClient, dict[str, str]], Coroutine[Any, Any, Any]]
) -> Callable[[GatewayClient], Coroutine[Any, Any, Any]]:
    async def call(client: GatewayClient) -> Any:  # noqa: ANN401  JSON is what it is
        return [await ask(client, each) for each in grants][-1]

    return call


def _path(name: str) -> str:
    return f"/v1/secrets/{quote(name, safe='')}"


def _grantee(grant: dict[str, str]) -> str:
    owner = grant.get("owner", "")
    return f"{grant['kind']}:{owner}/{grant['name']}" if owner else f"{grant['kind']}:{grant['name']}"


def _utc(milliseconds: int) -> str:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _yes(value: bool) -> str:
    return "yes" if value else "no: too short"
