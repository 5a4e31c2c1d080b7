"""``sluice jobs receipt`` and ``verify-receipt``: signed statements about ended jobs."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.cli.errors import EXIT_NO, UsageError
from sluice.cli.gateway_options import GatewayOptions, through_gateway
from sluice.cli.options import JobArgument, JsonOption
from sluice.client import GatewayClient, fetch_receipt, whole_id
from sluice.core import REPLACEMENT, SluiceError, printable, read_bounded, rfc3339, utc_now, write_public

if TYPE_CHECKING:
    from sluice.runtime.receipts import VerifiedReceipt


@through_gateway
def receipt(
    job_id: JobArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write it into this file; default: standard output.")
    ] = None,
    disclose_parameters: Annotated[
        bool,
        typer.Option(
            "--disclose-parameters",
            help="Put the arguments and Spark settings into it, secrets in them included; only the job's owner can.",
        ),
    ] = False,
    *,
    gateway: GatewayOptions,
) -> None:
    """Get a signed receipt of an ended job: what ran, who was allowed to run it, and what it connected to.

    It is an in-toto statement in a DSSE envelope, signed by the leading JobManager and recorded in the audit log.
    Verify it with `sluice jobs verify-receipt`.
    """

    async def call(client: GatewayClient) -> bytes:
        return await fetch_receipt(client, await whole_id(client, job_id), disclose=disclose_parameters)

    document = gateway.call(call)
    if output is None:
        sys.stdout.write(document.decode())
    else:
        write_public(output, document)


def verify_receipt(
    file: Annotated[Path, typer.Argument(help="The receipt.")],
    trust: Annotated[
        Path, typer.Option(help="Trust anchors (PEM): the root's certificate, or those of the internal authority.")
    ],
    trust_domain: Annotated[str, typer.Option(help="The only trust domain accepted; default: the anchors' own.")] = "",
    code: Annotated[
        list[Path] | None,
        typer.Option("--file", help="A file that must be among those that the job ran or was given; repeatable."),
    ] = None,
    audit_key: Annotated[
        Path | None,
        typer.Option(
            help="The audit log's public key (`sluice audit-log key`): its checkpoint must verify with it. Without it "
            "the auth service's signature counts."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify a receipt without a network, and say what was checked and what a receipt does not prove.

    Certificates that have expired since do no harm: they must have been valid when the audit log recorded the receipt.
    Exit code 0: verified; 1: not verified, with the reason; 2: there is no such file.
    """
    # Late: other verbs of the group need none of this.
    from sluice.gateway.audit_log import VerificationKey, parse_checkpoint
    from sluice.pki.attestations import MAX_ENVELOPE_BYTES
    from sluice.pki.identities import read_certificates
    from sluice.runtime.receipts import verify_receipt as verify

    for each in (file, trust, *(code or ()), *([audit_key] if audit_key else [])):
        if not each.exists():
            raise UsageError(f"there is no {each}")
    try:
        key = None if audit_key is None else VerificationKey.read(audit_key)
        verified = verify(
            read_bounded(file, MAX_ENVELOPE_BYTES),
            read_certificates(trust),
            trust_domain=trust_domain,
            files=[(str(each), _digest(each)) for each in code or ()],
            audit_key="" if key is None else key.id,
        )
        proof = verified.statement.predicate.audit_log
        if key is not None and proof is not None:
            parse_checkpoint(proof.checkpoint.encode(), key.checker())
    except SluiceError as error:
        if not as_json:
            raise
        print(json.dumps({"verified": False, "reason": error.what, "remedy": error.remedy}))
        raise typer.Exit(EXIT_NO) from error
    _tell(verified, as_json=as_json, audit_key=key is not None)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _tell(verified: VerifiedReceipt, *, as_json: bool, audit_key: bool) -> None:
    from sluice.runtime.receipts import NOT_PROVEN

    run, proven = verified.statement.predicate.run, verified.proven
    now = utc_now()
    expired = [f"{verified.signer}'s"] if verified.expires_at < now else []
    expired += [f"{proven.witness}'s"] if proven.expires_at < now else []
    not_checked = [] if audit_key else ["the audit log's own key (give --audit-key)"]
    if as_json:
        print(
            json.dumps(
                {
                    "verified": True,
                    "job": run.job,
                    "state": run.state,
                    "signer": str(verified.signer),
                    "serial": verified.serial,
                    "recorded_at": rfc3339(proven.at),
                    "audit_log": {"record": proven.record, "checkpoint": proven.checkpoint, "head": proven.head},
                    "checks": verified.checks,
                    "expired_since": expired,
                    "not_checked": not_checked,
                    "not_proven": NOT_PROVEN,
                    "not_recorded": verified.statement.predicate.not_recorded,
                }
            )
        )
        return
    typer.echo(f"verified: the receipt of job {run.job} ({printable(run.name, REPLACEMENT)}), {run.state}")
    for line in verified.checks:
        typer.echo(f"  checked: {printable(line, REPLACEMENT)}")
    for line in not_checked:
        typer.echo(f"  not checked: {line}")
    for line in expired:
        typer.echo(f"  note: {line} certificate has expired since; it was valid when the receipt was recorded")
    for line in verified.statement.predicate.not_recorded:
        typer.echo(f"  not recorded: {printable(line, REPLACEMENT)}")
    for line in NOT_PROVEN:
        typer.echo(f"  a receipt does not prove: {line}")
