"""Pods: reads the API server's review of a token, and maps the pod to its identities. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from sluice.core import PkiError
from sluice.pki.attestation.attestor import Attested, Grant
from sluice.pki.attestation.config import ANY, NAMESPACE, POD, PodIdentity, PodJobs
from sluice.pki.attestation.job_pods import job_pod_identity
from sluice.pki.errors import AttestationUnavailable, EnrolmentRefused
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509 import DAMAGED_JSON, Names

MAX_POD_TOKEN_BYTES = 16 << 10
"""Largest service account token, in bytes."""
MAX_REASON_CHARACTERS = 200

_JWT = re.compile(r"[A-Za-z0-9_-]{1,8192}\.[A-Za-z0-9_-]{1,8192}\.[A-Za-z0-9_-]{1,2048}")
_USERNAME = re.compile(
    r"system:serviceaccount:([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?):([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)"
)
_POD = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that the API server vouches for."""

    namespace: str
    service_account: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"pod:{self.namespace}/{self.service_account}/{self.name}/{self.uid}"


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    extra: dict[str, tuple[str, ...]] | None = None


class _Status(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()
    audiences: tuple[str, ...] | None = None
    error: str = ""


class _Review(msgspec.Struct, frozen=True):
    status: _Status


def audience(trust_domain: str) -> str:
    """The audience of tokens for the authority of a trust domain: it accepts only these, and they work nowhere else."""
    return f"spiffe://{trust_domain}/ca"


def review_of(token: str, wanted: str) -> dict[str, Any]:
    """The TokenReview to send; raises :class:`EnrolmentRefused` for what cannot be a token."""
    if len(token) > MAX_POD_TOKEN_BYTES or not _JWT.fullmatch(token):
        raise EnrolmentRefused("this is not a service account token", "mount a projected token of this pod")
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [wanted]},
    }


def reviewed_pod(answer: bytes, wanted: str) -> Pod:
    """The pod that the API server's answer names.

    Raises:
        EnrolmentRefused: it does not vouch for the token, for this audience, for a pod.
        AttestationUnavailable: it is no answer to a review.
    """
    try:
        status = msgspec.json.decode(answer, type=_Review).status
    except DAMAGED_JSON as error:
        raise AttestationUnavailable("the Kubernetes API's answer to a TokenReview cannot be read") from error
    # 1. A valid, unexpired token of an existing account and pod: the API server checks all of this.
    if not status.authenticated:
        raise EnrolmentRefused(
            "Kubernetes does not accept the service account token",
            f"is it a projected one of a running pod, for the audience {wanted}?",
        )
    # 2. For us. An API server without support for audiences names none, and has checked none.
    if wanted not in (status.audiences or ()):
        raise EnrolmentRefused("the service account token is not for this authority", f"its audience must be {wanted}")
    # 3. Of a service account, not of a user or a node.
    account = _USERNAME.fullmatch(status.user.username)
    if account is None:
        raise EnrolmentRefused("the token is not of a service account")
    # 4. Bound to a pod: other tokens may be used anywhere, and outlive the pod.
    extra = status.user.extra or {}
    names, uids = extra.get(_POD_NAME, ()), extra.get(_POD_UID, ())
    if len(names) != 1 or len(uids) != 1 or not _POD.fullmatch(names[0]) or not _UID.fullmatch(uids[0]):
        raise EnrolmentRefused(
            "the service account token is not bound to a pod", "use a projected volume, not the token of a Secret"
        )
    return Pod(account[1], account[3], names[0], uids[0])


def refusal_in(answer: bytes, token: str) -> str:
    """Why the API server did not accept ``token``, for the authority's log; nothing of the token is in it."""
    try:
        text = msgspec.json.decode(answer, type=_Review).status.error
    except DAMAGED_JSON:
        return ""
    for part in (token, *token.split(".")):
        text = text.replace(part, "…")
    return "".join(each if each.isprintable() else "?" for each in text)[:MAX_REASON_CHARACTERS]


def attested(
    pod: Pod, rules: Iterable[PodIdentity], trust_domain: str, namespaces_of_jobs: Iterable[PodJobs] = ()
) -> Attested:
    """The identities of ``pod``; raises :class:`EnrolmentRefused` when it has none."""
    for jobs in namespaces_of_jobs:
        if pod.namespace == jobs.namespace and pod.service_account in {jobs.driver, jobs.executor}:
            return Attested(str(pod), (_grant_of_job(pod, jobs, trust_domain),))
    grants = tuple(_grant(pod, rule, trust_domain) for rule in rules if _applies(pod, rule))
    if not grants:
        raise EnrolmentRefused(
            f"service account {pod.namespace}/{pod.service_account} has no identity here",
            "name it in [[ca.kubernetes.identities]]",
        )
    return Attested(str(pod), grants)


def _grant_of_job(pod: Pod, jobs: PodJobs, trust_domain: str) -> Grant:
    spiffe_id = job_pod_identity(trust_domain, pod.namespace, pod.name)
    role = Role.DRIVER if pod.service_account == jobs.driver else Role.EXECUTOR
    if spiffe_id is None or spiffe_id.role is not role:
        raise EnrolmentRefused(
            f"pod {pod.namespace}/{pod.name} is no {role} of a job of this namespace",
            "its name comes from sluice submit --target kubernetes, for the namespace in kubernetes.namespace",
        )
    return Grant(Names.checked(spiffe_id, (), ()))


def _applies(pod: Pod, rule: PodIdentity) -> bool:
    return rule.namespace in {ANY, pod.namespace} and rule.service_account in {ANY, pod.service_account}


def _grant(pod: Pod, rule: PodIdentity, trust_domain: str) -> Grant:
    def filled(text: str) -> str:
        return text.replace(NAMESPACE, pod.namespace).replace(POD, pod.name)

    try:
        spiffe_id = SpiffeId.process(trust_domain, Role(rule.role), filled(rule.name))
        names = Names.checked(spiffe_id, tuple(map(filled, rule.dns)), rule.ips)
    except PkiError as error:
        raise EnrolmentRefused(f"no identity can be made for {pod}: {error.what}", error.remedy) from error
    return Grant(names, rule.edge_server)
