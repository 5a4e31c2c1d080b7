"""Envoy's gRPC ``ext_authz`` service for the listener of jobs, on the server that also serves Envoy's configuration.

Over HTTP, a check would itself be a CONNECT request. Envoy passes the client's certificate as an attribute.
"""

from __future__ import annotations

import logging
from urllib.parse import unquote_to_bytes

from grpclib.const import Status

from sluice.core import PkiError, SluiceError
from sluice.core.grpc import Call, CallRefused, Method
from sluice.core.xds import TYPE_PREFIX, XdsError, decode, encode, from_json
from sluice.gateway.egress.checks import EgressAnswer, EgressChecks, EgressRequest
from sluice.gateway.envoy_config import INTERNAL_LISTENER_HEADER
from sluice.pki.x509 import DAMAGED, Purpose, certified_identity, check_purpose, load_certificate_block

_LOG = logging.getLogger(__name__)

CHECK = "/envoy.service.auth.v3.Authorization/Check"
MAX_CHECK_BYTES = 64 << 10
_REQUEST = TYPE_PREFIX + "envoy.service.auth.v3.CheckRequest"
_RESPONSE = TYPE_PREFIX + "envoy.service.auth.v3.CheckResponse"
_GRPC_OK = 0
_GRPC_PERMISSION_DENIED = 7


def authorization(checks: EgressChecks) -> dict[str, Method]:
    """The gRPC method, by path."""

    async def serve(call: Call) -> None:
        request = read_check(await call.receive_one())
        try:
            answer = await checks.check(request)
        except SluiceError as error:
            # A decision that cannot be recorded is not made. Envoy then refuses.
            _LOG.exception("cannot decide about a connection of a job")
            raise CallRefused(Status.UNAVAILABLE, "cannot decide now") from error
        await call.send(write_answer(answer))

    return {CHECK: Method(serve, MAX_CHECK_BYTES)}


def read_check(data: bytes) -> EgressRequest:
    """Decode Envoy's request. Raises :class:`CallRefused`."""
    try:
        attributes = decode(_REQUEST, data).attributes
    except XdsError as error:
        raise CallRefused(Status.INVALID_ARGUMENT, error.what) from error
    http = attributes.request.http
    return EgressRequest(
        method=http.method,
        authority=http.host,
        peer=_peer(attributes.source.certificate),
        request_id=http.headers.get("x-request-id", ""),
        address=attributes.source.address.socket_address.address,
    )


def _peer(certificate: str) -> str:
    """The SPIFFE ID of the client's certificate (URL-encoded PEM). Envoy itself reports only the first of several."""
    try:
        leaf = load_certificate_block(unquote_to_bytes(certificate))
        check_purpose(leaf, Purpose.CLIENT)
        return str(certified_identity(leaf))
    except (PkiError, *DAMAGED) as error:
        _LOG.warning("a connection of a job is refused: %s", error)
        raise CallRefused(Status.PERMISSION_DENIED, "the certificate is not the identity of a job") from error


def write_answer(answer: EgressAnswer) -> bytes:
    """Encode the answer for Envoy."""
    if answer.allowed:
        header = {
            "header": {"key": INTERNAL_LISTENER_HEADER, "value": answer.listener},
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        }
        document: dict[str, object] = {"status": {"code": _GRPC_OK}, "ok_response": {"headers": [header]}}
    else:
        denied = {"status": {"code": answer.status}, "body": f"{answer.reason}\n"}
        document = {"status": {"code": _GRPC_PERMISSION_DENIED}, "denied_response": denied}
    return encode(from_json(_RESPONSE, {**document, "dynamic_metadata": dict(answer.facts)}))
