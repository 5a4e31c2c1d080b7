"""``sluice policy``: explain and test the access policy."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.errors import EXIT_NO, UsageError
from sluice.cli.gateway.policy_replay import replay
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.published_routes import operations
from sluice.core import read_bounded
from sluice.gateway import is_name
from sluice.gateway.authz import (
    DEFAULT_POLICY,
    MAX_POLICY_BYTES,
    Case,
    CaseResult,
    Policy,
    Verdict,
    decide_case,
    is_pattern,
    parse_table,
    read_policy,
)
from sluice.gateway.authz.policy_file import policy_file
from sluice.gateway.credentials import UserStore

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The access policy: the operations that each role grants, in gateway/policy.toml of the home.\n\n"
    "Without a file, Sluice's default policy applies; `sluice policy show > policy.toml` prints it. "
    "A changed file applies within a second, without a restart; one with a mistake is reported and not used.",
)

FileOption = Annotated[Path | None, typer.Option("--file", help="Use this file instead of the policy in force.")]


@app.command()
def show(
    default: Annotated[bool, typer.Option("--default", help="Use the default policy of Sluice.")] = False,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the policy in force; with --json: the decision of each role for each operation."""
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
    operation: Annotated[str, typer.Argument(help="The operation, such as jobs.cancel.")],
    name: Annotated[str, typer.Option("--as", help="Name of the principal.")],
    group: Annotated[list[str] | None, typer.Option(help="A group of the principal; repeatable.")] = None,
    role: Annotated[
        list[str] | None, typer.Option(help="An additional role, such as that of an API token; repeatable.")
    ] = None,
    scope: Annotated[list[str] | None, typer.Option(help="A scope of the token; repeatable.")] = None,
    file: FileOption = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain a decision. Exit code 0: allowed (possibly for the principal's own jobs only), 1: denied."""
    policy = read_policy(_path(home, config, file), operations())
    _require_operation(operation, policy)
    _valid(name)
    if bad := [each for each in scope or () if not is_pattern(each)]:
        raise UsageError(f"{bad[0]!r} is not a scope", "use an operation, or a pattern such as jobs.*")
    located, _ = load_configuration(home, config)
    known = UserStore(located).read().get(name)
    groups = tuple(dict.fromkeys([*(group or ()), *(known.groups if known else ())]))
    roles = tuple(dict.fromkeys([*(role or ()), *(known.roles if known else ())]))
    case = Case(name=name, operation=operation, expect="allow", groups=groups, roles=roles, scopes=tuple(scope or ()))
    outcome = decide_case(case, policy)
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
    "test",
    epilog="The table: [[case]] with as, expect (allow, own, deny), operation, and groups, roles, scopes; for the way "
    "out egress (host:port) and job instead of operation. One destination: sluice policy test --egress "
    "api.example.com:443 --as ada --job nightly",
)
def compare(
    table: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="TOML file with expected decisions.")] = None,
    egress: Annotated[
        str, typer.Option(help="Instead of a table: may a job connect to this destination, as in api.example.com:443?")
    ] = "",
    name: Annotated[str, typer.Option("--as", help="With --egress: the owner of the job.")] = "",
    job: Annotated[str, typer.Option(help="With --egress: the name of the job.")] = "",
    group: Annotated[list[str] | None, typer.Option(help="With --egress: a group of the owner; repeatable.")] = None,
    role: Annotated[
        list[str] | None, typer.Option(help="With --egress: an additional role of the owner; repeatable.")
    ] = None,
    file: FileOption = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a policy with expected decisions, or ask it about one destination of a job.

    Exit code 0: all as expected, or the destination is allowed; 1: a decision differs, or the destination is denied.
    Addresses that a name resolves to are looked at only when a job connects.
    """
    if bool(egress) is (table is not None):
        raise UsageError("either FILE or --egress", "sluice policy test expected.toml")
    policy = read_policy(_path(home, config, file), operations())
    if egress:
        located, _ = load_configuration(home, config)
        known = UserStore(located).read().get(name)
        case = Case(
            name=_valid(name),
            expect="allow",
            egress=egress,
            job=job,
            groups=tuple(dict.fromkeys([*(group or ()), *(known.groups if known else ())])),
            roles=tuple(dict.fromkeys([*(role or ()), *(known.roles if known else ())])),
        )
        print_egress(decide_case(case, policy), as_json=as_json)
        return
    _compare_table(table or Path(), policy, as_json=as_json)


def _compare_table(table: Path, policy: Policy, *, as_json: bool) -> None:
    cases = parse_table(read_bounded(table, MAX_POLICY_BYTES), str(table))
    for case in cases:
        if case.operation:
            _require_operation(case.operation, policy)
    outcomes = [decide_case(case, policy) for case in cases]
    wrong = [outcome for outcome in outcomes if not outcome.holds]
    if as_json:
        documents = [
            {
                "as": each.case.name,
                "operation": each.case.operation,
                "egress": each.case.egress,
                "job": each.case.job,
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
            what = case.operation or f"egress to {case.egress}"
            typer.echo(f"{what} for {case.name}: expected {case.expect}, got {got}; {each.ruling.reason}")
        typer.echo(f"{len(cases) - len(wrong)} of {len(cases)} as expected")
    if wrong:
        raise typer.Exit(EXIT_NO)


app.command(
    "replay",
    epilog="Examples: sluice policy replay new-policy.toml; "
    "sluice policy replay new-policy.toml --since 7d --format json",
)(replay)


def print_egress(outcome: CaseResult, *, as_json: bool) -> None:
    """Print the decision about one destination; exits with 1 when it is denied."""
    case, ruling = outcome.case, outcome.ruling
    if as_json:
        document = {"as": case.name, "egress": case.egress, "job": case.job, "verdict": ruling.verdict.name.lower()}
        typer.echo(json.dumps({**document, "reason": ruling.reason, "roles": outcome.principal.roles}))
    else:
        held = ", ".join(outcome.principal.roles) or "no role"
        verdict = "allowed" if ruling.verdict is Verdict.ALLOW else "denied"
        typer.echo(f"{case.egress} for jobs {case.job!r} of {case.name} ({held}): {verdict}; {ruling.reason}")
    if ruling.verdict is Verdict.DENY:
        raise typer.Exit(EXIT_NO)


def _valid(name: str) -> str:
    if not is_name(name):
        raise UsageError(f"{name!r} is not a valid name", "--as NAME")
    return name


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
