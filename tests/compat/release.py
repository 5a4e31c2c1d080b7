"""Records the interface of a release: its RPC methods, and its records in files and stores.

    python -m tests.compat.release VERSION

records the release in this tree, once, when its version is final. A recording is never changed.
"""

from __future__ import annotations

import importlib
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from sluice.core import write_public
from sluice.runtime import gateways as runtime_gateways
from sluice.runtime.ha.leader_endpoint import LeaderGateway
from sluice.runtime.jobmanager import gateways as jobmanager_gateways
from sluice.runtime.node.diagnostics import DiagnosticsGateway
from sluice.runtime.rpc import contract, envelope, errors
from sluice.runtime.shuffle.control_plane import gateways as shuffle_gateways
from sluice.runtime.shuffle.data_plane import frames
from tests.compat.samples import sample
from tests.compat.types import Described, Describer, is_unset

RELEASES = Path(__file__).parent / "releases"
GATEWAYS = (
    runtime_gateways.DriverGateway,
    runtime_gateways.JobMasterGateway,
    runtime_gateways.ResourceManagerGateway,
    runtime_gateways.TaskExecutorGateway,
    runtime_gateways.EgressGateway,
    jobmanager_gateways.DispatcherGateway,
    shuffle_gateways.ShuffleManagerGateway,
    shuffle_gateways.ShuffleWorkerGateway,
    LeaderGateway,
    DiagnosticsGateway,
)
"""What processes of a cluster call of each other."""
RECORDS = {
    "access to secrets": "runtime.jobmanager.secrets.records:SecretRecord",
    "active key of secrets": "runtime.jobmanager.secrets.rotation:_Active",
    "address of the JobManager": "runtime.node.addresses:JobManagerAddress",
    "address of the ShuffleManager": "runtime.node.addresses:ShuffleManagerAddress",
    "API tokens": "gateway.credentials.api_tokens:_TokenFile",
    "attempt of a job": "runtime.jobmanager.store.job_store:Attempt",
    "audit record": "gateway.audit_log.chain:AuditRecord",
    "checkpoint": "runtime.checkpoint.ledger:Checkpoint",
    "checkpoints of a job": "runtime.jobmanager.store.checkpoint_store:_CheckpointsPointer",
    "egress row that waits": "core.egress_evidence:EgressRow",
    "exported certificates": "pki.revocation.exported_certificates:_Record",
    "history of a job": "runtime.jobmanager.store.job_history:JobHistory",
    "job": "runtime.jobmanager.store.job_store:_JobPointer",
    "job with its result": "runtime.jobmanager.views:JobRecord",
    "join token": "pki.identities.join_tokens:TokenRecord",
    "leader": "runtime.ha.leadership:LeaderInformation",
    "ledger record": "pki.ledger.records:LedgerRecord",
    "pointers of the embedded store": "runtime.ha.embedded:_PointerFile",
    "result of a job": "runtime.jobmanager.store.job_store:_ResultPointer",
    "revocation of a credential": "gateway.credentials.revocations:Revocation",
    "revoked certificate": "pki.revocation.crl:Revocation",
    "rotation": "pki.authorities.rotation_phases:Rotation",
    "savepoint": "runtime.checkpoint.savepoints:Savepoint",
    "sealed secret": "runtime.jobmanager.secrets.envelope:Sealed",
    "sessions": "gateway.credentials.sessions:_SessionFile",
    "shuffle": "runtime.shuffle.manager.job_store:_ShufflePointer",
    "shuffles of a job": "runtime.shuffle.manager.job_store:_JobPointer",
    "signing key of job tokens": "pki.jwt.authority:_StoredKey",
    "stored entry": "runtime.ha.storage:StoredEntry",
    "submission of a job": "runtime.messages.jobs:JobSubmission",
    "trust report": "pki.trust.reports:TrustReport",
    "users": "gateway.credentials.users:_UserFile",
}
"""What another release may find in a home or in the store of the cluster: a lasting name, and the type in this one."""


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is recorded of one release."""

    rpc_version: int
    shuffle_version: int
    envelopes: Described
    methods: dict[str, dict[str, Any]]
    """By ``Gateway.method``: its rules, parameters and result, and ``sample``: arguments as they travel."""
    errors: list[str]
    """That arrive as themselves."""
    records: dict[str, dict[str, Any]]
    """By lasting name: ``type`` and ``sample``, as it is in a file."""
    structs: dict[str, Described]


def remote_methods() -> Iterator[tuple[str, type, contract.Method]]:
    """Yield every method that a peer may call: ``Gateway.method``, the Protocol, and the method."""
    for protocol in GATEWAYS:
        for name, method in sorted(contract.gateway_of(protocol).methods.items()):
            if not method.rules.local:
                yield f"{protocol.__name__}.{name}", protocol, method


def record_type(name: str) -> Any:  # a Struct
    """Return the type that a record has in this tree."""
    module, _, found = RECORDS[name].partition(":")
    return getattr(importlib.import_module(f"sluice.{module}"), found)


def this_release() -> Release:
    """Return the messages and records of the code in this tree."""
    describer = Describer()
    methods = {}
    for label, protocol, method in remote_methods():
        hints = typing.get_type_hints(getattr(protocol, method.name))
        given = [sample(hints[name]) for name in method.parameters]
        methods[label] = {
            "allow": sorted(method.rules.allow),
            "own_job": method.rules.own_job,
            "oneway": method.rules.oneway,
            "unfenced": method.rules.unfenced,
            "parameters": [
                {
                    "name": name,
                    "type": describer.describe(hints[name]),
                    "unset": is_unset(method.defaults.get(name)),
                }
                for name in method.parameters
            ],
            "result": describer.describe(hints["return"]),
            "sample": msgspec.msgpack.encode(given).hex(),
        }
    records = {
        name: {
            "type": describer.describe(kind := record_type(name)),
            "sample": msgspec.json.encode(sample(kind)).decode(),
        }
        for name in RECORDS
    }
    return Release(
        rpc_version=envelope.PROTOCOL_VERSION,
        shuffle_version=frames.VERSION,
        envelopes=describer.describe(envelope.Envelope),
        methods=methods,
        errors=sorted(errors.remotable_names()),
        records=records,
        structs=describer.structs,
    )


def recorded() -> Mapping[str, Release]:
    """Return all recorded releases, by version."""
    return {each.stem: msgspec.json.decode(each.read_bytes(), type=Release) for each in RELEASES.glob("*.json")}


def main() -> None:
    """Record the release in this tree."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    path = RELEASES / f"{sys.argv[1]}.json"
    if path.exists():
        sys.exit(f"{path} is there: what a release says is recorded once")
    RELEASES.mkdir(exist_ok=True)
    write_public(
        path, msgspec.json.format(msgspec.json.encode(this_release(), order="deterministic"), indent=1) + b"\n"
    )


if __name__ == "__main__":
    main()
