"""Decides whether a call may proceed, and raises a typed error otherwise. Pure functions."""

from __future__ import annotations

import hmac

from sluice.runtime.rpc.call import Caller
from sluice.runtime.rpc.contract import Gateway, Method
from sluice.runtime.rpc.errors import CallNotPermitted, FencingTokenMismatch, MethodNotFound


def find_method(gateway: Gateway, name: str, endpoint: str) -> Method:
    """Return the declared method; raise :class:`MethodNotFound` for any other name."""
    method = gateway.methods.get(name)
    if method is None:
        raise MethodNotFound(f"endpoint {endpoint} declares no remote method {name!r}")
    return method


def check_caller(method: Method, caller: Caller, *, endpoint: str, job_id: str) -> None:
    """Raise :class:`CallNotPermitted` unless ``caller`` may make the call.

    ``job_id`` is the job of the endpoint. A local method is closed to every peer, even to one with this process's own
    certificate. An ``own_job`` method is closed to callers without a job, and to every caller of an endpoint that
    belongs to no job.
    """
    identity = caller.identity
    if method.rules.local:
        if caller.local:
            return
        raise CallNotPermitted(
            f"{identity} may not call {method.name} of {endpoint}", "only endpoints of the same process may"
        )
    if identity.role not in method.rules.allow:
        raise CallNotPermitted(
            f"{identity} may not call {method.name} of {endpoint}",
            f"its role must be one of {', '.join(sorted(method.rules.allow))}",
        )
    if method.rules.own_job and (not job_id or identity.job_id != job_id):
        raise CallNotPermitted(f"{identity} may not call {method.name} of {endpoint}: it belongs to another job")


def check_token(method: Method, *, endpoint: str, expected: bytes | None, given: bytes | None) -> None:
    """Raise :class:`FencingTokenMismatch` unless ``given`` is the current fencing token.

    ``expected`` is None while the endpoint does not lead: then every fenced call is refused. Tokens are compared in
    constant time and never shown.
    """
    if method.rules.unfenced:
        return
    if expected is None:
        raise FencingTokenMismatch(f"endpoint {endpoint} is not the leader now", "look up the leader and retry")
    if given is None:
        raise FencingTokenMismatch(f"{method.name} of {endpoint} needs a fencing token and got none")
    if not hmac.compare_digest(expected, given):
        raise FencingTokenMismatch(
            f"{method.name} of {endpoint} got the token of another leader or session", "register again"
        )
