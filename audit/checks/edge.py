"""The ingress: requests without a credential, with a wrong or insufficient one, and what answers disclose."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sluice.audit.check import Check
from sluice.audit.checks import references as ref
from sluice.audit.model import Evidence, Kind, Severity, finding, not_examined, passed
from sluice.audit.subject import Operation, Subject
from sluice.pki import Channel
from sluice.pki.tls import edge_client_context, unverified_client_context

MAX_BODY_BYTES = 64 << 10
_REFUSED = frozenset({401, 403})
_WRONG_CREDENTIALS = (
    "Bearer slc_000000000000_" + "A" * 43,
    "Bearer " + "A" * 400,
    "Basic YWRtaW46YWRtaW4=",
    "Bearer",
)
_SPOOFED = {
    "x-sluice-principal": "admin",
    "x-sluice-roles": "admin",
    "x-forwarded-for": "127.0.0.1",
    "x-forwarded-client-cert": "By=spiffe://sluice.local/gateway/envoy;URI=spiffe://sluice.local/user/admin",
    "x-real-ip": "127.0.0.1",
    "x-original-url": "/v1/overview",
    "x-http-method-override": "GET",
}
_METHODS = ("TRACE", "OPTIONS", "PUT", "DELETE", "PROPFIND", "FOO")
_NO_ROUTES = ("/", "/v1/../v1/overview", "/v1/%2e%2e/overview", "//v1/overview", "/v1/overview;x=1", "/admin", "/stats")
_INTERNALS = re.compile(
    r"Traceback|Exception|\bat [a-z]+(\.[A-Za-z]+)+\(|\.py\b|\.java\b|/(home|root|usr|tmp|var|opt)/|stack ?trace|"
    r"\b(envoy|aiohttp|python|jetty|netty|akka|pekko|openssl)[/ ]v?[0-9]",
    re.IGNORECASE,
)
_TELLING_HEADERS = re.compile(r"x-powered-by|x-aspnet.*|x-envoy-.*|x-sluice-.*|via|x-debug.*", re.IGNORECASE)
_OPEN_PATHS = ("/", "/overview", "/jobs", "/jars", "/config", "/v1/jobs", "/json/", "/api/v1/applications", "/metrics")
"""API paths of Flink, Spark and similar products."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: str
    """The body of a refusal; other bodies are not read, because they may be endless streams."""


def _ask(
    subject: Subject, method: str, path: str, headers: Mapping[str, str] | None = None, *, secret: bool = False
) -> Answer:
    """Send one request on a new connection; ``secret`` goes only to a verified server."""
    host, port = subject.listener.address
    timeout = subject.options.timeout
    connection: http.client.HTTPConnection
    if subject.listener.kind is Kind.HTTP:
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
    else:
        context = edge_client_context(subject.edge.ca_file) if secret else unverified_client_context()
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        response = connection.getresponse()
        body = "" if response.status < 400 else response.read(MAX_BODY_BYTES).decode("latin-1")
        return Answer(response.status, tuple(response.getheaders()), body)
    except http.client.HTTPException as error:
        raise ConnectionError(f"no HTTP answer: {type(error).__name__}") from error
    finally:
        connection.close()


def _path(operation: Operation) -> str:
    return re.sub(r"\{[a-z_]+\}", "0" * 32, operation.path)


def _every_operation(subject: Subject, done: str, headers: Sequence[Mapping[str, str]]) -> Evidence:
    """Request all published operations with each of ``headers``: every answer must be 401 or 403."""
    if not subject.edge.operations:
        return not_examined("nobody said which operations there are")
    seen: set[int] = set()
    for operation in subject.edge.operations:
        for header in headers:
            answer = _ask(subject, operation.method, _path(operation), header)
            seen.add(answer.status)
            if answer.status not in _REFUSED:
                return finding(done, f"{operation.method} {operation.path} was answered with {answer.status}")
    told = " or ".join(str(status) for status in sorted(seen))
    return passed(done, f"{told} for all {len(subject.edge.operations)} operations")


def _without(subject: Subject) -> Evidence:
    return _every_operation(subject, "asked for every operation without a credential", ({},))


def _wrong(subject: Subject) -> Evidence:
    headers = tuple({"authorization": credential} for credential in _WRONG_CREDENTIALS)
    done = f"asked for every operation with {len(headers)} wrong credentials"
    return _every_operation(subject, done, headers)


def _spoofed(subject: Subject) -> Evidence:
    done = f"asked for every operation with headers that only the gateway may write ({', '.join(_SPOOFED)})"
    return _every_operation(subject, done, (_SPOOFED,))


def _insufficient(subject: Subject) -> Evidence:
    edge = subject.edge
    if not edge.weak_token:
        return not_examined("no credential that may do only some of it was given")
    done = "asked for every operation with a token that may only read"
    header = {"authorization": f"Bearer {edge.weak_token}"}
    granted = readable = 0
    for operation in edge.operations:
        answer = _ask(subject, operation.method, _path(operation), header, secret=True)
        refused = answer.status in _REFUSED
        if operation.operation in edge.beyond_weak and not refused:
            return finding(done, f"{operation.method} {operation.path} was answered with {answer.status}")
        if operation.operation not in edge.beyond_weak:  # several requests may be one operation
            readable += 1
            granted += not refused
    if granted < readable:
        return finding(done, f"only {granted} of {readable} operations that it may do were granted: it proves nothing")
    return passed(done, f"{len(edge.operations) - readable} refused, {granted} granted")


def _methods(subject: Subject) -> Evidence:
    done = f"sent {', '.join(_METHODS)} to /v1/overview, and GET to {len(_NO_ROUTES)} paths that are no route"
    requests = [(method, "/v1/overview") for method in _METHODS] + [("GET", path) for path in _NO_ROUTES]
    for method, path in requests:
        answer = _ask(subject, method, path)
        if answer.status < 400:
            return finding(done, f"{method} {path} was answered with {answer.status}")
    return passed(done, "each refused with a 4xx or 5xx")


def _answers(subject: Subject) -> list[Answer]:
    """A few refusals of different kinds."""
    requests = (
        ("GET", "/v1/overview"),
        ("GET", "/v1/%2e%2e/"),
        ("TRACE", "/"),
        ("GET", "/" + "a" * 9000),
        ("PUT", "/"),
    )
    return [_ask(subject, method, path) for method, path in requests]


def _headers(subject: Subject) -> Evidence:
    done = "read the headers of five refusals"
    for answer in _answers(subject):
        for name, value in answer.headers:
            if _TELLING_HEADERS.fullmatch(name) or (name.lower() == "server" and any(map(str.isdigit, value))):
                return finding(done, f"{name}: {value[:80]}")
    return passed(done, "no version, no trace of what stands behind")


def _bodies(subject: Subject) -> Evidence:
    done = "read the bodies of five refusals"
    for answer in _answers(subject):
        told = _INTERNALS.search(answer.body)
        if told:
            return finding(done, f"a body with status {answer.status} says {told.group()!r}")
    return passed(done, "no stack trace, no path, no version")


def _cookies(subject: Subject) -> Evidence:
    done = "looked at the cookies that refusals set"
    for answer in _answers(subject):
        for name, value in answer.headers:
            if name.lower() != "set-cookie":
                continue
            attributes = {part.strip().partition("=")[0].lower() for part in value.split(";")[1:]}
            missing = {"secure", "httponly", "samesite"} - attributes
            if missing:
                return finding(done, f"{value.partition('=')[0]} is set without {', '.join(sorted(missing))}")
    return passed(done, "none, or with Secure, HttpOnly and SameSite")


def _fails_closed(subject: Subject) -> Evidence:
    edge = subject.edge
    if edge.without_auth is None:
        return not_examined("the auth service is taken away only when --intrusive asks for it")
    readable = next((each for each in edge.operations if each.method == "GET" and "{" not in each.path), None)
    if readable is None:
        return not_examined("nobody said which operations there are")
    done = f"stopped the auth service and asked for {readable.method} {readable.path}, "
    with edge.without_auth():
        answers = [_ask(subject, readable.method, readable.path)]
        if edge.weak_token:
            header = {"authorization": f"Bearer {edge.weak_token}"}
            answers.append(_ask(subject, readable.method, readable.path, header, secret=True))
    done += "without a credential and with a token" if edge.weak_token else "without a credential"
    told = ", ".join(str(answer.status) for answer in answers)
    if any(answer.status < 400 for answer in answers):
        return finding(done, f"answered with {told}")
    return passed(done, f"refused with {told}")


def _open_api(subject: Subject) -> Evidence:
    done = f"asked without a credential for {', '.join(_OPEN_PATHS)}"
    answered = []
    for path in _OPEN_PATHS:
        answer = _ask(subject, "GET", path)
        if answer.status < 300:
            answered.append(f"{path} ({answer.status})")
    if answered:
        return finding(done, f"answered: {', '.join(answered)}")
    return passed(done, "none was answered")


_KINDS = frozenset({Kind.SERVER})
_CHANNELS = frozenset({Channel.EDGE})

_at_the_edge = partial(Check, severity=Severity.CRITICAL, kinds=_KINDS, channels=_CHANNELS)
"""A question to the gateway."""

CHECKS = (
    _at_the_edge(
        id="EDG-01",
        title="No operation without a credential",
        problem="operation allowed without a credential",
        expected="401 for every published operation",
        references=(ref.ASVS_ACCESS, "RFC 9110, 15.5.2 (401)"),
        remedy="Ask the auth service about every request, and refuse when it does not answer "
        "(failure_mode_allow: false).",
        run=_without,
    ),
    _at_the_edge(
        id="EDG-02",
        title="No operation with a wrong credential",
        problem="operation allowed with a wrong credential",
        expected="401 for every published operation",
        references=(ref.ASVS_ACCESS, "RFC 6750, 3.1 (invalid_token)"),
        remedy="Verify the credential itself, not only that there is one.",
        run=_wrong,
    ),
    _at_the_edge(
        id="EDG-03",
        title="No operation with a credential of too few rights",
        problem="operation allowed beyond the credential's role",
        expected="403 for what the role may not do, an answer for what it may",
        references=(ref.ASVS_ACCESS,),
        remedy="Decide by operation and role, deny by default (gateway policy).",
        run=_insufficient,
    ),
    _at_the_edge(
        id="EDG-04",
        title="Identity headers of clients are ignored",
        problem="identity headers of clients trusted",
        expected="401, as without them",
        references=(ref.ASVS_ACCESS,),
        remedy="Strip identity and forwarding headers of clients before anything looks at them.",
        run=_spoofed,
    ),
    _at_the_edge(
        id="EDG-05",
        title="Unknown methods and paths are refused",
        problem="unknown method or path accepted",
        severity=Severity.MEDIUM,
        expected="4xx",
        references=(ref.ASVS_METHODS, "RFC 9110, 9.3.8 (TRACE)"),
        remedy="Let only published routes through; refuse paths that can be read in two ways.",
        run=_methods,
    ),
    _at_the_edge(
        id="EDG-06",
        title="Headers do not disclose software behind the gateway",
        problem="headers disclose software behind the gateway",
        severity=Severity.LOW,
        expected="no version, no X-Powered-By, no header of the proxy's or the cluster's own",
        references=(ref.ASVS_LEAKS,),
        remedy="Take those headers out at the gateway.",
        run=_headers,
    ),
    _at_the_edge(
        id="EDG-07",
        title="Error bodies do not disclose internals",
        problem="error bodies disclose internals",
        severity=Severity.MEDIUM,
        expected="a problem document that tells nothing but what the client may know",
        references=(ref.ASVS_LEAKS, "RFC 9457, 5 (problem details: security)"),
        remedy="Answer errors with a problem document of your own; keep traces in the log.",
        run=_bodies,
    ),
    _at_the_edge(
        id="EDG-08",
        title="Cookies are Secure, HttpOnly and SameSite",
        problem="cookie without Secure or HttpOnly",
        severity=Severity.MEDIUM,
        expected="Secure, HttpOnly and SameSite, or no cookie",
        references=(ref.ASVS_COOKIES,),
        remedy="Set Secure, HttpOnly and SameSite on every cookie.",
        run=_cookies,
    ),
    _at_the_edge(
        id="EDG-10",
        title="Nothing passes while the auth service is down",
        problem="requests pass without the auth service",
        expected="4xx or 5xx while no credential can be checked",
        references=(ref.ASVS_ACCESS,),
        remedy="Have the gateway refuse when the auth service does not answer (failure_mode_allow: false), and the "
        "service behind it refuse requests that the gateway did not authenticate.",
        run=_fails_closed,
        last=True,
    ),
    Check(
        id="EDG-09",
        title="An API without TLS requires a credential",
        problem="unauthenticated API without TLS",
        severity=Severity.CRITICAL,
        kinds=frozenset({Kind.HTTP}),
        expected="401, 403 or no connection",
        references=(ref.ASVS_ACCESS, ref.ASVS_TRANSPORT),
        remedy="Bind it to loopback and put an authenticating gateway in front of it. Flink: rest.bind-address, "
        "security.ssl.rest.authentication-enabled, web.submit.enable=false; Spark: spark.master.rest.enabled=false, "
        "spark.ui.enabled=false.",
        run=_open_api,
    ),
)
