"""Weaknesses of the edge: the real Envoy, with one change in the configuration from the auth service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sluice.gateway.envoy_config.filters import open_route

_GOOD_TLS12 = ["ECDHE-ECDSA-AES128-GCM-SHA256"]


def configured(change: Callable[[Any], None]) -> Callable[[], None]:
    """Return a weakness that applies ``change`` to Envoy's configuration before it is published."""

    def apply() -> None:
        from sluice.gateway.proxy import xds_publisher as publisher

        original: Any = vars(publisher)["edge_documents"]

        def edge_documents(*arguments: Any) -> Any:
            documents = original(*arguments)
            change(documents)
            return documents

        vars(publisher)["edge_documents"] = edge_documents

    return apply


def parts(node: Any, key: str) -> Iterator[Any]:
    """Every mapping in ``node`` that has ``key``."""
    if isinstance(node, dict):
        if key in node:
            yield node
        for value in list(node.values()):
            yield from parts(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from parts(value, key)


def _tls(document: Any) -> Any:
    return next(each for each in parts(document, "@type") if str(each["@type"]).endswith(".DownstreamTlsContext"))


def _parameters(document: Any) -> Any:
    return _tls(document)["common_tls_context"]["tls_params"]


def _manager(document: Any) -> Any:
    return next(each for each in parts(document, "http_filters"))


def _tls12(document: Any) -> None:
    _parameters(document).update(tls_minimum_protocol_version="TLSv1_2", cipher_suites=_GOOD_TLS12)


def _tls12_only(document: Any) -> None:
    _tls12(document)
    _parameters(document).update(tls_maximum_protocol_version="TLSv1_2", ecdh_curves=["P-256"])


def _cbc(document: Any) -> None:
    _tls12(document)
    _parameters(document).update(cipher_suites=[*_GOOD_TLS12, "ECDHE-ECDSA-AES128-SHA"])


def _resumable(document: Any) -> None:
    _tls(document).update(disable_stateless_session_resumption=False)


def _patient(document: Any) -> None:
    for chain in parts(document, "transport_socket_connect_timeout"):
        chain["transport_socket_connect_timeout"] = "1000s"


def _unasked(document: Any) -> None:
    manager = _manager(document)
    manager["http_filters"] = [each for each in manager["http_filters"] if "Router" in str(each)]


def _fails_open(document: Any) -> None:
    for each in parts(document, "failure_mode_allow"):
        each["failure_mode_allow"] = True


def _fails_open_alone(document: Any) -> None:
    """Fail open, and also remove Envoy's own filters, which would still refuse what nobody granted."""
    _fails_open(document)
    manager = _manager(document)
    kept = [each for each in manager["http_filters"] if "ExtAuthz" in str(each) or "Router" in str(each)]
    manager["http_filters"] = kept


def _adds(name: str, value: str) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for each in parts(document, "virtual_hosts"):
            for host in each["virtual_hosts"]:
                host.setdefault("response_headers_to_add", []).append({"header": {"key": name, "value": value}})

    return change


def _open_route(document: Any) -> None:
    for each in parts(document, "virtual_hosts"):
        for host in each["virtual_hosts"]:
            host["routes"].insert(
                0,
                {
                    "match": {"path": "/stats"},
                    "direct_response": {"status": 200, "body": {"inline_string": "42"}},
                    "typed_per_filter_config": dict(open_route()),
                },
            )


WEAKNESSES: dict[str, Callable[[], None]] = {
    "edge: TLS 1.2": configured(_tls12),
    "edge: TLS 1.2 only": configured(_tls12_only),
    "edge: CBC": configured(_cbc),
    "edge: resumable": configured(_resumable),
    "edge: endless handshake": configured(_patient),
    "edge: nobody is asked": configured(_unasked),
    "edge: fails open": configured(_fails_open),
    "edge: fails open alone": configured(_fails_open_alone),
    "edge: telling header": configured(_adds("x-powered-by", "Express")),
    "edge: cookie without flags": configured(_adds("set-cookie", "session=1; Path=/")),
    "edge: open route": configured(_open_route),
}
