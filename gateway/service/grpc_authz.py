"""The auth service over gRPC: ``envoy.service.auth.v3.Authorization/Check``, which any Envoy can call.

The decision is the same as over HTTP (:mod:`sluice.gateway.service.checks`). The proxy is authenticated before its
messages arrive here. Only the facts that Envoy itself writes into a message are trusted:

- method, path and headers are those of the request;
- the caller's address is ``source.address``, which Envoy knows, and not ``x-forwarded-for``, which any client can send;
- a client certificate is ``source.certificate``, which Envoy takes from the connection, and never the header
  ``x-forwarded-client-cert``, because an external proxy's configuration may let clients write it. The certificate is
  verified again here (:mod:`sluice.gateway.service.edge_clients`).

Source: https://www.envoyproxy.io/docs/envoy/latest/api-v3/service/auth/v3/external_auth.proto
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc  # type: ignore[import-untyped]  # the package has no type information
from google.protobuf.message import DecodeError

from sluice.core import SluiceError
from sluice.core.xds import Message, message_class
from sluice.gateway.authn import PresentedCredentials
from sluice.gateway.credentials import CSRF_HEADER
from sluice.gateway.decision import CheckRequest
from sluice.gateway.envoy_config import CLIENT_CERTIFICATE, NOT_FROM_CLIENTS, REMOVED_TOWARDS_REST
from sluice.gateway.service.checks import (
    MAX_LOGGED_FIELD_CHARACTERS,
    OPERATION_HEADER,
    PRINCIPAL_HEADER,
    Answer,
    CheckService,
)

_LOG = logging.getLogger(__name__)

SERVICE = "envoy.service.auth.v3.Authorization"
METHOD = "Check"
MAX_CHECK_SECONDS = 10.0
"""Maximum time for a decision, whatever deadline the caller sets; an issuer's keys may have to be fetched."""

_REQUEST = "envoy.service.auth.v3.CheckRequest"
_RESPONSE = "envoy.service.auth.v3.CheckResponse"
_OVERWRITE = 2
"""``OVERWRITE_IF_EXISTS_OR_ADD`` of ``HeaderAppendAction``: replaces values that the client sent."""
_STATUS_CODES: Mapping[int, grpc.StatusCode] = {401: grpc.StatusCode.UNAUTHENTICATED}
"""HTTP status of a refusal -> gRPC status. Envoy sends the HTTP status, which is in the response too, to the client."""

_CertificateHeader = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class GrpcAuthorization:
    """The gRPC service.

    Attributes:
        checks: makes the decisions.
        certificate_header: returns the header that represents a client certificate, given ``source.certificate``; the
            authenticator refuses an empty one.
    """

    checks: CheckService
    certificate_header: _CertificateHeader

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler to add to a gRPC server."""
        method = grpc.unary_unary_rpc_method_handler(self.check, response_serializer=_serialized)
        return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method})

    async def check(self, request: bytes, context: Any) -> Message:  # noqa: ANN401  grpc.aio's context has no usable type
        """Answer one check. On an error, Envoy refuses the request by itself (``failure_mode_allow: false``)."""
        remaining = context.time_remaining()
        try:
            async with asyncio.timeout(MAX_CHECK_SECONDS if remaining is None else min(remaining, MAX_CHECK_SECONDS)):
                check, headers = self._parsed(request)
                return _response(await self.checks.answer(check, headers))
        except MalformedCheck as error:
            _LOG.warning("refusing a malformed check: %s", error)
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except TimeoutError:
            _LOG.warning("refusing a request: it was not decided in time")
            await _abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, "not decided in time")
        except SluiceError:
            _LOG.exception("refusing a request: cannot decide")
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "cannot decide now")

    def _parsed(self, data: bytes) -> tuple[CheckRequest, Mapping[str, str]]:
        try:
            attributes = message_class(_REQUEST).FromString(data).attributes
        except DecodeError as error:
            raise MalformedCheck("the check request cannot be decoded") from error
        http = attributes.request.http
        if not http.method or not http.path:
            raise MalformedCheck("the check request has no HTTP method and path")
        values = _headers(http)
        source = attributes.source
        certificate = (self.certificate_header(source.certificate),) if source.certificate else ()
        check = CheckRequest(
            method=http.method,
            target=http.path,
            presented=PresentedCredentials(
                tuple(values.get("authorization", ())), tuple(values.get("cookie", ())), certificate
            ),
            csrf=tuple(values.get(CSRF_HEADER, ())),
            request_id=",".join(values.get("x-request-id", ()))[:MAX_LOGGED_FIELD_CHARACTERS],
            address=source.address.socket_address.address[:MAX_LOGGED_FIELD_CHARACTERS],
        )
        return check, {name: ",".join(each) for name, each in values.items()}


class MalformedCheck(Exception):
    """The check request is malformed, or not about an HTTP request."""


def _headers(http: Message) -> dict[str, list[str]]:
    """All values of each header except the client certificate's; names in lower case."""
    if http.headers and http.header_map.headers:
        # Envoy writes one of the two. With both, it would be ambiguous which one applies.
        raise MalformedCheck("the check request has two sets of headers")
    found: dict[str, list[str]] = {}
    for name, value in http.headers.items():
        found.setdefault(name.lower(), []).append(value)
    for each in http.header_map.headers:
        text = each.raw_value.decode("latin-1") if each.raw_value else each.value
        found.setdefault(each.key.lower(), []).append(text)
    found.pop(CLIENT_CERTIFICATE, None)
    return found


def _response(answer: Answer) -> Message:
    response = message_class(_RESPONSE)()
    if not answer.allowed:
        code = _STATUS_CODES.get(answer.status, grpc.StatusCode.PERMISSION_DENIED)
        response.status.code = code.value[0]
        denied = response.denied_response
        denied.status.code = answer.status
        denied.body = answer.body.decode()
        _write(denied.headers, answer.headers)
        return response
    ok = response.ok_response
    _write(ok.headers, answer.headers)
    ok.headers_to_remove.extend({*REMOVED_TOWARDS_REST, *NOT_FROM_CLIENTS} - answer.headers.keys())
    if answer.cookie is not None:
        ok.response_headers_to_add.add().header.MergeFrom(_header("set-cookie", answer.cookie))
    # For access logs, rate limits and rules of the proxy. Never contains the assertion, which is a credential.
    response.dynamic_metadata.update({name: answer.headers[name] for name in (OPERATION_HEADER, PRINCIPAL_HEADER)})
    return response


def _write(into: Message, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        option = into.add()
        option.header.MergeFrom(_header(name, value))
        option.append_action = _OVERWRITE


def _header(name: str, value: str) -> Message:
    return message_class("envoy.config.core.v3.HeaderValue")(key=name, value=value)


def _serialized(message: Message) -> bytes:
    data: bytes = message.SerializeToString()
    return data


async def _abort(context: Any, code: grpc.StatusCode, details: str) -> NoReturn:  # noqa: ANN401  as above
    await context.abort(code, details)
    raise AssertionError("abort() returned")
