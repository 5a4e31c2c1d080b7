"""Asks the auth service over gRPC as a proxy would, with a certificate of the test's choice."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio  # type: ignore[import-untyped]  # the package has no type information

from sluice.core.xds import message_class
from sluice.gateway.service.grpc_authz import METHOD, SERVICE

REQUEST = message_class("envoy.service.auth.v3.CheckRequest")
RESPONSE = message_class("envoy.service.auth.v3.CheckResponse")


def channel(address: str, identity: Path, *, host: str = "localhost") -> Any:
    """Open a gRPC channel with the certificate and the trust anchor in ``identity``."""
    credentials = grpc.ssl_channel_credentials(
        (identity / "ca.pem").read_bytes(), (identity / "key.pem").read_bytes(), (identity / "chain.pem").read_bytes()
    )
    options = [("grpc.ssl_target_name_override", host), ("grpc.enable_retries", 0)]
    return grpc.aio.secure_channel(address, credentials, options)


def question(
    method: str, target: str, headers: Sequence[tuple[str, str]], *, raw: bool = False, certificate: str = ""
) -> Any:
    """Return the check request that Envoy would send for such an HTTP request.

    With ``raw``, each value of a repeated header is a separate entry.
    """
    request = REQUEST()
    http = request.attributes.request.http
    http.method, http.path, http.scheme, http.protocol = method, target, "https", "HTTP/1.1"
    request.attributes.source.certificate = certificate
    request.attributes.source.address.socket_address.address = "192.0.2.7"
    if raw:
        for name, value in headers:
            http.header_map.headers.add(key=name.lower(), raw_value=value.encode("latin-1"))
    else:
        for name, value in headers:
            present = http.headers[name.lower()]
            http.headers[name.lower()] = f"{present},{value}" if present else value
    return request


@dataclass(frozen=True)
class Told:
    """An answer of the auth service, independent of the protocol."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def told(response: Any) -> Told:
    """Return the answer that Envoy derives from a gRPC response."""
    if response.status.code:
        denied = response.denied_response
        return Told(denied.status.code, _headers(denied.headers), denied.body.encode())
    return Told(200, _headers(response.ok_response.headers), b"")


def _headers(options: Any) -> dict[str, str]:
    return {each.header.key: each.header.value for each in options}


async def ask(at: Any, request: Any, *, timeout: float = 10.0) -> Any:  # noqa: ASYNC109  gRPC's own deadline
    """Send one check request; raises ``grpc.aio.AioRpcError``."""
    call = at.unary_unary(
        f"/{SERVICE}/{METHOD}", request_serializer=REQUEST.SerializeToString, response_deserializer=RESPONSE.FromString
    )
    return await call(request, timeout=timeout)


def bare_context(identity: Path | None) -> ssl.SSLContext:
    """Return a client context that accepts any server, with or without a client certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if identity is not None:
        context.load_cert_chain(identity / "chain.pem", identity / "key.pem")
    return context
