"""Attempts with the job's own valid identity to act as another: TaskManager, worker, gateway, another job."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..attempt import Group, Place, Run, Tried, add, reached, refused, untried
from ..identity import NoIdentity, asked, connected
from ..wire import ENDED, Refused, RpcConnection, pack
from ..world import Target, World

FORGING = Group(
    "FRG",
    severity="critical",
    cwe=(290, 863),
    expected="a handshake that is refused, or an answer that says so",
    remedy="this is a fault in Sluice, whatever the level of isolation: please report it as SECURITY.md says",
)
_PLACES = (Place.DRIVER_JVM, Place.UDF)
_SECONDS = 40.0
_NOT_THERE = frozenset({"EndpointNotFound"})
_ADMITTED = frozenset({"InvalidArguments", "RemoteFailure"})
"""Errors that show that the call was admitted."""

_PROFILE = {"cores": 1, "memory_mb": 768}
_OFFER = {"taskmanager": "insider", "host": "127.0.0.1", "slot": 0, "allocation_id": "insider", "profile": _PROFILE}
_REGISTRATION = {
    "name": "insider",
    "host": "127.0.0.1",
    "slots": 64,
    "profile": _PROFILE,
    "python": "3",
    "version": "0",
}
_FINISHED = {"succeeded": True, "exit_code": 0}
_EXIT = {"executor_id": 1, "exit_code": 1, "by_application": False, "reason": "insider"}
_TARGETS = {"version": 1 << 40, "targets": [{"resource_profile_id": 0, "total": 0, "cores": 1, "memory_mb": 768}]}
_CSR = {"executor_id": 1, "csr_pem": b"-----BEGIN CERTIFICATE REQUEST-----"}
_SHUFFLE = {"job_id": "{victim}", "partitions": 1}

Arguments = Sequence[Any]

_RPC: tuple[tuple[str, str, str, str, Arguments], ...] = (
    # At the JobManager as a TaskManager.
    ("register as a TaskManager, with slots that do not exist", "rpc", "resourcemanager", "register", [_REGISTRATION]),
    ("tell the slots of a TaskManager", "rpc", "resourcemanager", "heartbeat", [{"slots": []}]),
    ("offer slots to its own JobMaster", "rpc", "jobmaster/{own}", "offer_slot", [_OFFER]),
    ("offer slots to another job", "rpc", "jobmaster/{victim}", "offer_slot", [_OFFER]),
    ("get executor identities of its own job signed", "rpc", "jobmaster/{own}", "sign_executor_identity", [_CSR]),
    ("get executor identities of another job signed", "rpc", "jobmaster/{victim}", "sign_executor_identity", [_CSR]),
    ("report an executor of another job as dead", "rpc", "jobmaster/{victim}", "executor_exited", [_EXIT]),
    # As the driver of another job.
    ("register as another job's driver and get its work and secrets", "rpc", "jobmaster/{victim}", "register_driver",
     [1, 1]),
    ("renew the lease of another job's driver", "rpc", "jobmaster/{victim}", "renew_lease", [1]),
    ("end another job by its driver's word", "rpc", "jobmaster/{victim}", "driver_finished", [_FINISHED]),
    ("set how many executors another job has", "rpc", "jobmaster/{victim}", "set_executor_targets", [_TARGETS]),
    ("kill executors of another job", "rpc", "jobmaster/{victim}", "kill_executors", [[1]]),
    ("get the key of another job's shuffles", "rpc", "jobmaster/{victim}", "register_shuffle", [0, 1]),
    ("locate shuffles of another job", "rpc", "jobmaster/{victim}", "locate_shuffle", [0]),
    ("remove shuffles of another job", "rpc", "jobmaster/{victim}", "unregister_shuffle", [0]),
    # As the JobManager itself, whose endpoints are for its own process.
    ("submit a job past the gateway", "rpc", "dispatcher", "submit_job", ["f" * 32, {}]),
    ("list all jobs past the gateway", "rpc", "dispatcher", "jobs", []),
    ("cancel another job past the gateway", "rpc", "dispatcher", "cancel_job", ["{victim}"]),
    ("read another job's log past the gateway", "rpc", "dispatcher", "read_job_log",
     ["{victim}", "driver.stdout", 0, 1]),
    ("cancel another job at its JobMaster", "rpc", "jobmaster/{victim}", "cancel", []),
    ("read another job's record at its JobMaster", "rpc", "jobmaster/{victim}", "record", []),
    ("take slots at the ResourceManager", "rpc", "resourcemanager", "require_slots", [{}]),
    ("drain a TaskManager", "rpc", "resourcemanager", "drain_taskmanager", ["taskmanager-1", True]),
    ("release another job's slots", "rpc", "resourcemanager", "release_job", ["{victim}"]),
    # At the ShuffleManager.
    ("register as a ShuffleWorker", "rpc-shuffle", "shufflemanager", "register_worker",
     [{"name": "insider", "host": "127.0.0.1", "port": 1}]),
    ("introduce itself to the ShuffleManager as a JobManager", "rpc-shuffle", "shufflemanager", "connect_cluster",
     [b"0" * 32]),
    ("allocate shuffles of another job", "rpc-shuffle", "shufflemanager", "allocate", [_SHUFFLE]),
    ("release another job's shuffle data", "rpc-shuffle", "shufflemanager", "release_job", ["{victim}"]),
)  # fmt: skip


def _ports(world: World, word: str) -> list[Target]:
    """The listeners of a kind; ``rpc`` is the JobManagers' alone."""
    found = [each for each in world.of("port") if each.name.startswith(word)]
    return [each for each in found if word != "rpc" or "shuffle" not in each.name]


def _at(world: World, word: str, run: Callable[[World, Target], Tried]) -> Tried:
    """Try each listener until one is reached; a handshake that fails is a refusal."""
    targets = _ports(world, word)
    if not targets:
        return untried(f"no listener {word} is known from outside")
    result = untried("nothing was tried")
    for target in targets:
        try:
            result = run(world, target)
        except NoIdentity as error:
            return untried(f"nothing was sent to {target}: {error}")
        except (ssl.SSLError, OSError, http.client.HTTPException) as error:
            result = refused(
                f"connected to {target}", f"{type(error).__name__}: {getattr(error, 'reason', error)}"[:200]
            )
        if result.outcome == "reached":
            break
    return result


def _filled(world: World, value: Any) -> Any:  # noqa: ANN401  arguments
    """``value`` with the ids of the jobs in it."""
    if isinstance(value, str):
        return value.replace("{victim}", world.victim).replace("{own}", world.own)
    if isinstance(value, Mapping):
        return {key: _filled(world, each) for key, each in value.items()}
    return [_filled(world, each) for each in value] if isinstance(value, list) else value


def _calling(word: str, endpoint: str, method: str, arguments: Arguments) -> Run:
    def run(world: World) -> Tried:
        if "{victim}" in f"{endpoint} {arguments}" and not world.victim:
            return untried("there is no other job")
        return _at(world, word, call)

    def call(world: World, target: Target) -> Tried:
        done = f"called {method} of {endpoint} at {target} with the job's own certificate"
        with connected(world, target.address, "h2") as secure:
            connection = RpcConnection(secure)
            try:
                connection.call(_filled(world, endpoint), method, _filled(world, list(arguments)))
            except Refused as error:
                # These listeners admit a driver: without an answer, this client's protocol is wrong.
                silent = str(error) == ENDED and world.place == Place.DRIVER_JVM
                if silent or str(error) in _NOT_THERE:
                    return untried(f"{done}: {error}")
                return (reached if str(error) in _ADMITTED else refused)(done, str(error))
        return reached(done, "it answered")

    return run


# --- listeners that speak HTTP -------------------------------------------------------------------------------------


def _http(word: str, method: str, path: str, *, body: Mapping[str, str] | None = None, own: bool = True,
          headers: Callable[[World], Mapping[str, str]] | None = None,
          refusals: frozenset[int] = frozenset({401, 403, 405})) -> Run:  # fmt: skip
    def ask(world: World, target: Target) -> Tried:
        certificate = "the job's own certificate" if own else "no certificate"
        done = f"{method} {path} at {target} with {certificate}"
        fields = {"Content-Type": "application/json", **(headers(world) if headers else {})}
        data = json.dumps(_filled(world, dict(body))).encode() if body is not None else b""
        with connected(world, target.address, "http/1.1", own=own) as secure:
            status, _ = asked(secure, method, _filled(world, path), fields, data)
        return (refused if status in refusals else reached)(done, f"status {status}")

    return lambda world: _at(world, word, ask)


def _segment(document: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()


def _assertion(algorithm: str, key: bytes = b"") -> str:
    """An assertion of the gateway for REST, forged."""
    now = int(time.time())
    claims = {"iss": "sluice-gateway", "aud": "sluice-rest", "sub": "root", "roles": ["admin"], "groups": [],
              "mth": "token", "cred": "", "rid": "", "any": True, "htm": "GET", "htu": "/v1/jobs", "jti": "f" * 24,
              "iat": now, "exp": now + 60}  # fmt: skip
    signed = f"{_segment({'alg': algorithm, 'typ': 'JWT', 'kid': 'gateway'})}.{_segment(claims)}"
    signature = hmac.new(key, signed.encode(), hashlib.sha256).digest() if algorithm == "HS256" else b""
    return f"{signed}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def _as_gateway(algorithm: str) -> Callable[[World], Mapping[str, str]]:
    return lambda _: {"x-sluice-assertion": f"Bearer {_assertion(algorithm, b'sluice')}"}


def _as_admin(_: World) -> Mapping[str, str]:
    """Headers that Envoy itself would set."""
    return {
        "x-sluice-principal": "root",
        "x-sluice-role": "admin",
        "x-sluice-operation": "jobs.list",
        "x-forwarded-client-cert": "URI=spiffe://sluice.local/gateway/envoy;By=spiffe://sluice.local/jobmanager/jobmanager-1",
        "x-envoy-original-path": "/healthz",
        "x-forwarded-for": "127.0.0.1",
    }


def _as_bearer(algorithm: str) -> Callable[[World], Mapping[str, str]]:
    return lambda _: {"authorization": f"Bearer {_assertion(algorithm, b'sluice')}"}


_CA_JOB = {"spiffe_id": "spiffe://sluice.local/job/{victim}/driver", "csr_pem": "insider"}
_CSR_ALONE = {"csr_pem": "insider"}
_NOTHING_THERE = frozenset({404, 405})
_BAD = frozenset({400, 401, 403, 404})
_BLOB = "/v1/blobs/{victim}/" + "0" * 64

_HTTP: tuple[tuple[str, Run], ...] = (
    ("read blobs of another job", _http("blob", "GET", _BLOB, refusals=frozenset({403}))),
    ("write blobs", _http("blob", "PUT", "/v1/blobs/{own}/" + "0" * 64)),
    ("leave its own blobs by the path", _http("blob", "GET", "/v1/blobs/{own}/../{victim}/" + "0" * 64,
                                             refusals=_BAD)),
    ("renew its identity at the CA", _http("ca", "POST", "/v1/renew", body=_CSR_ALONE)),
    ("get the identity of another job from the CA", _http("ca", "POST", "/v1/jobs/identities", body=_CA_JOB)),
    ("revoke certificates at the CA", _http("ca", "POST", "/v1/revoke",
                                            body={"serial": "1", "reason": "unspecified", "by": "insider"})),
    ("follow trust and revocations at the CA", _http("ca", "POST", "/v1/trust", body={})),
    ("renew an identity where processes enrol", _http("enrolment", "POST", "/v1/renew", body=_CSR_ALONE, own=False,
                                                     refusals=_NOTHING_THERE)),
    ("get a job's identity where processes enrol", _http("enrolment", "POST", "/v1/jobs/identities", body=_CA_JOB,
                                                        own=False, refusals=_NOTHING_THERE)),
    ("enrol with a made-up token", _http("enrolment", "POST", "/v1/enrol",
                                         body={"token": "f" * 43, "csr_pem": "insider"}, own=False)),
    ("use REST over mutual TLS with a forged assertion", _http("rest-tls", "GET", "/v1/jobs",
                                                               headers=_as_gateway("HS256"))),
    ("ask the auth service about a request", _http("auth", "POST", "/v1/check")),
    ("pass the gateway by an assertion of its own", _http("edge", "GET", "/v1/jobs", headers=_as_gateway("none"),
                                                         own=False)),
    ("pass the gateway by an assertion signed with a shared key", _http("edge", "GET", "/v1/jobs",
                                                                        headers=_as_gateway("HS256"), own=False)),
    ("pass the gateway by headers of Envoy's own", _http("edge", "GET", "/v1/jobs", headers=_as_admin, own=False)),
    ("pass the gateway by a token without signature", _http("edge", "GET", "/v1/jobs", headers=_as_bearer("none"),
                                                           own=False)),
    ("pass the gateway by a token signed with a shared key", _http("edge", "GET", "/v1/jobs",
                                                                   headers=_as_bearer("HS256"), own=False)),
    ("pass the gateway by a job's certificate", _http("edge", "GET", "/v1/jobs")),
    ("reach an operation for administrators by an odd path", _http("edge", "POST",
                                                                   "/v1/jobs/..%2ftaskmanagers/taskmanager-1/drain",
                                                                   headers=_as_admin, own=False, refusals=_BAD)),
)  # fmt: skip


# --- the data plane of the shuffle service ---------------------------------------------------------------------------

_HEADER = struct.Struct("<IBBHIIqIIIIQ")
_MAGIC, _VERSION, _HELLO, _HELLO_OK = 0x31434C53, 1, 1, 17


def _greeting(direction: str, job: str) -> Run:
    """Send HELLO for ``job``: only shuffle workers may name a job."""

    def greet(world: World, target: Target) -> Tried:
        payload = pack({"version": _VERSION, "direction": direction, "job": _filled(world, job)})
        with connected(world, target.address) as secure:
            secure.sendall(_HEADER.pack(_MAGIC, _HELLO, 0, 0, 0, 0, 0, 1, len(payload), 0, 0, 0) + payload)
            answer = secure.recv(_HEADER.size)
        done = f"said HELLO for {job} at {target}, to {direction}"
        if len(answer) < 5:
            return refused(done, "the connection was ended")
        return (reached if answer[4] == _HELLO_OK else refused)(done, f"a frame of type {answer[4]}")

    return lambda world: _at(world, "data-", greet) if world.victim else untried("there is no other job")


_SHUFFLE_ROWS: tuple[tuple[str, Run], ...] = (
    ("read another job's shuffle data from its workers", _greeting("fetch", "{victim}")),
    ("write into another job's shuffle data as a worker that hands over", _greeting("push", "{victim}")),
)


def _rows() -> Iterator[tuple[str, Run]]:
    for what, word, endpoint, method, arguments in _RPC:
        yield what, _calling(word, endpoint, method, arguments)
    yield from _HTTP
    yield from _SHUFFLE_ROWS


for _number, (_what, _run) in enumerate(_rows(), 1):
    add(f"FRG-{_number:02}", _what, FORGING, _run, places=_PLACES, seconds=_SECONDS, forked=False)
