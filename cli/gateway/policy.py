"""``sluice policy``: who may do what, explained and tested before it counts."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.errors import EXIT_NO, UsageError
from sluice.cli.options import (
    DEFAULT_HOME,
    ConfigOption,
    HomeOption,
    JsonOption,
    load_configuration,
)
from sluice.cli.published_routes import operations
from sluice.core.files import read_bounded
from sluice.gateway.authz.operations import is_pattern
from sluice.gateway.authz.policy import Policy, Verdict
from sluice.gateway.authz.policy_file import (
    DEFAULT_POLICY,
    MAX_POLICY_BYTES,
    policy_file,
    read_policy,
)
from sluice.gateway.authz.policy_table import Case, decide_case, parse_table
from sluice.gateway.credentials.users import UserStore
from sluice.gateway.principal import is_name

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Who may do what: roles by operations by ownership, in one file (gateway/policy.toml in the home).\n\n"
    "Without a file the policy of Sluice counts; `sluice policy show > policy.toml` is where to begin. "
    "A changed file counts within a second, without a restart; one with a mistake is told about and not used.",
)

FileOption = Annotated[Path | None, typer.Option("--file", help="This file instead of the one in force.")]


@app.command()
def show(
    default: Annotated[bool, typer.Option("--default", help="The policy that comes with Sluice.")] = False,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the policy in force, as it is written; with --json: what it means, operation by operation."""
    path = DEFAULT_POLICY if default else _path(home, config, None)
    policy = read_policy(path, operations())
    if not as_json:
        typer.echo(read_bounded(path, MAX_POLICY_BYTES).decode(), nl=False)
        return
    roles = {
        name: {"allow": sorted(role.allow), "allow_own": sorted(role.allow_own), "deny": sorted(role.deny)}
        for name, role in policy.roles.items()
    }
    bound = {"groups": policy.groups, "users": policy.users, "default_roles": policy.default_roles}
    typer.echo(json.dumps({"file": str(path), "operations": sorted(policy.operations), "roles": roles, **bound}))


@app.command(
    epilog="Examples: sluice policy check --as ada jobs.cancel; "
    "sluice policy check --as eve --group data-engineers --file new-policy.toml jobs.submit"
)
def check(
    operation: Annotated[str, typer.Argument(help="Operation, such as jobs.cancel.")],
    name: Annotated[str, typer.Option("--as", help="Who asks.")],
    group: Annotated[list[str] | None, typer.Option(help="A group they are in; repeatable.")] = None,
    role: Annotated[
        list[str] | None, typer.Option(help="A role they have besides (an API token's); repeatable.")
    ] = None,
    scope: Annotated[list[str] | None, typer.Option(help="What their token is narrowed to; repeatable.")] = None,
    file: FileOption = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain what would be decided, and why. Exit code 0: allowed (perhaps for their own jobs only), 1: denied."""
    policy = read_policy(_path(home, config, file), operations())
    _require_operation(operation, policy)
    if not is_name(name):
        raise UsageError(f"{name!r} is nobody's name")
    if bad := [each for each in scope or () if not is_pattern(each)]:
        raise UsageError(f"{bad[0]!r} is no scope", "an operation, or a pattern such as jobs.*")
    located, _ = load_configuration(home, config)
    known = UserStore(located).read().get(name)
    groups = tuple(dict.fromkeys([*(group or ()), *(known.groups if known else ())]))
    roles = tuple(dict.fromkeys([*(role or ()), *(known.roles if known else ())]))
    outcome = decide_case(Case(name, operation, "allow", groups, roles, tuple(scope or ())), policy)
    ruling = outcome.ruling
    if as_json:
        document = {"as": name, "operation": operation, "verdict": ruling.verdict.name.lower(), "reason": ruling.reason}
        typer.echo(json.dumps({**document, "roles": outcome.principal.roles, "role": ruling.role or None}))
    else:
        held = ", ".join(outcome.principal.roles) or "no role"
        verdict = {Verdict.ALLOW: "allowed", Verdict.OWN: "allowed for their own jobs", Verdict.DENY: "denied"}
        typer.echo(f"{operation} for {name} ({held}): {verdict[ruling.verdict]}; {ruling.reason}")
    if ruling.verdict is Verdict.DENY:
        raise typer.Exit(EXIT_NO)


@app.command(
    "test", epilog="The table: [[case]] with as, operation, expect (allow, own, deny), and groups, roles, scopes."
)
def compare(
    table: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file with a table of expected decisions.")],
    file: FileOption = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a policy with a table of expected decisions. Exit code 1 when one is not as expected."""
    policy = read_policy(_path(home, config, file), operations())
    cases = parse_table(read_bounded(table, MAX_POLICY_BYTES), str(table))
    for case in cases:
        _require_operation(case.operation, policy)
    outcomes = [decide_case(case, policy) for case in cases]
    wrong = [outcome for outcome in outcomes if not outcome.holds]
    if as_json:
        documents = [
            {
                "as": each.case.name,
                "operation": each.case.operation,
                "expected": each.case.expect,
                "got": each.ruling.verdict.name.lower(),
                "reason": each.ruling.reason,
            }
            for each in wrong
        ]
        typer.echo(json.dumps({"cases": len(cases), "wrong": documents}))
    else:
        for each in wrong:
            case, got = each.case, each.ruling.verdict.name.lower()
            typer.echo(f"{case.operation} for {case.name}: expected {case.expect}, got {got}; {each.ruling.reason}")
        typer.echo(f"{len(cases) - len(wrong)} of {len(cases)} as expected")
    if wrong:
        raise typer.Exit(EXIT_NO)


def _path(home: Path, config: Path | None, file: Path | None) -> Path:
    if file is not None:
        return file
    located, configuration = load_configuration(home, config)
    return policy_file(located, configuration.gateway.policy_file)


def _require_operation(operation: str, policy: Policy) -> None:
    if operation not in policy.operations:
        close = difflib.get_close_matches(operation, sorted(policy.operations), n=1, cutoff=0.5)
        remedy = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(policy.operations))}"
        raise UsageError(f"there is no operation {operation!r}", remedy)
