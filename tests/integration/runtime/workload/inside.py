"""A program in a job's box: the unmodified SPIFFE client of PyPI, and a hostile one. Prints JSON."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # it has no type information
from spiffe import JwtBundleSet, JwtSvid, TrustDomain, WorkloadApiClient
from spiffe._proto import workload_pb2, workload_pb2_grpc

HEADER = [("workload.spiffe.io", "true")]
OWN, OTHER, FOREIGN_TOKEN = sys.argv[1:4]
ADDRESS = os.environ["SPIFFE_ENDPOINT_SOCKET"]


def code_of(call: Callable[[], Any]) -> str:
    """The gRPC status that a call is refused with; empty if it succeeds."""
    try:
        call()
    except grpc.RpcError as error:
        return str(error.code().name)
    return ""


def regular() -> dict[str, Any]:
    """What a well-behaved client gets."""
    with WorkloadApiClient(default_timeout=20) as client:
        svid = client.fetch_x509_svid()
        token = client.fetch_jwt_svid({"vault"})
        again = client.fetch_jwt_svid({"vault"})
        bundles: JwtBundleSet = client.fetch_jwt_bundles()
        bundle = bundles.get_bundle_for_trust_domain(TrustDomain("sluice.local"))
        assert bundle is not None
        checked = JwtSvid.parse_and_validate(token.token, bundle, {"vault"})
        return {
            "x509": str(svid.spiffe_id),
            "svids": len(client.fetch_x509_svids()),
            "jwt": str(checked.spiffe_id),
            "lifetime": checked.expiry,
            "kept": token.token == again.token,
            "validated": str(client.validate_jwt_svid(token.token, "vault").spiffe_id),
        }


def hostile() -> dict[str, str]:
    """The status of each request that must be refused to everybody."""
    with grpc.insecure_channel(ADDRESS) as channel:
        stub = workload_pb2_grpc.SpiffeWorkloadAPIStub(channel)  # type: ignore[no-untyped-call]  # generated

        def token(audience: list[str], subject: str = "", header: Any = HEADER) -> str:
            request = workload_pb2.JWTSVIDRequest(audience=audience, spiffe_id=subject)
            return code_of(lambda: stub.FetchJWTSVID(request, metadata=header, timeout=20))

        def validated(text: str, audience: str) -> str:
            request = workload_pb2.ValidateJWTSVIDRequest(svid=text, audience=audience)
            return code_of(lambda: stub.ValidateJWTSVID(request, metadata=HEADER, timeout=20))

        found = {
            "another audience": token(["payroll"]),
            "one more audience": token(["vault", "payroll"]),
            "no audience": token([]),
            "an empty audience": token([""]),
            "a long audience": token(["a" * 600]),
            "another subject": token(["vault"], OTHER),
            "another domain": token(["vault"], OWN.replace("sluice.local", "other.test")),
            "its own subject": token(["vault"], OWN),
            "no header": token(["vault"], header=[]),
            "another header": token(["vault"], header=[("workload.spiffe.io", "false")]),
            "a foreign token": validated(FOREIGN_TOKEN, "vault"),
            "no header for svids": code_of(
                lambda: next(stub.FetchX509SVID(workload_pb2.X509SVIDRequest(), timeout=20))
            ),
        }
        refused = [token([f"payroll-{n}"]) for n in range(60)]
        found["a flood"] = ",".join(sorted(set(refused)))
        found["after the flood"] = token(["vault"])
        return found


def rude() -> dict[str, Any]:
    """Open many connections, send bytes that are not HTTP/2, and try to change the API's files."""
    path = ADDRESS.removeprefix("unix://")
    connections = []
    for _ in range(64):
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            connection.connect(path)
            connections.append(connection)
        except BlockingIOError:
            connection.close()
    for connection in connections[::2]:
        try:
            connection.send(b"\xff" * 4096)
        except OSError:
            connection.close()
    for connection in connections:
        connection.close()
    directory = Path(path).parent
    changed = []
    for name in ("api.sock", "tokens/vault"):
        for change in (Path.unlink, lambda each: each.write_text("mine"), lambda each: each.rename("/tmp/x")):  # noqa: S108
            try:
                change(directory / name)
                changed.append(name)
            except OSError:
                continue
    return {"changed": changed, "token file": (directory / "tokens" / "vault").read_text(encoding="ascii")}


sys.stdout.write(
    json.dumps({"regular": regular(), "hostile": hostile(), "rude": rude(), "again": regular()["jwt"]}),
)
