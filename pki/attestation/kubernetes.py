"""Attestation of pods: the API server reviews their projected service account tokens.

https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-review-v1/
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from sluice.core import (
    KubernetesApi,
    KubernetesMisconfigured,
    KubernetesUnanswered,
    cluster_url,
)
from sluice.pki.attestation.attestor import Attested
from sluice.pki.attestation.config import PodAttestationConfig, PodIdentity, PodJobs
from sluice.pki.attestation.pods import attested, audience, refusal_in, review_of, reviewed_pod
from sluice.pki.errors import AttestationUnavailable, EnrolmentRefused

_LOG = logging.getLogger(__name__)

KUBERNETES = "kubernetes"
"""The name of this attestor on the wire."""
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
MAX_REVIEW_BYTES = 64 << 10
"""Largest answer to a review, in bytes; the token comes back in it."""
REVIEWS_AT_A_TIME = 16
PATIENCE_SECONDS = 10.0
"""How long a pod may wait, for others and for its own review."""


def api_of(config: PodAttestationConfig) -> KubernetesApi:
    """The API server that ``config`` names; raises :class:`AttestationUnavailable`."""
    account = Path(config.account)
    try:
        return KubernetesApi(config.api or cluster_url(), token_file=account / "token", ca_file=account / "ca.crt")
    except KubernetesMisconfigured as error:
        raise AttestationUnavailable(error.what, "see [ca.kubernetes]") from error


class PodAttestor:
    """An :class:`~sluice.pki.attestation.attestor.Attestor` for pods of one Kubernetes cluster.

    It does not cache answers: a deleted pod is refused as soon as the API server refuses it.
    """

    def __init__(
        self,
        api: KubernetesApi,
        rules: Sequence[PodIdentity],
        trust_domain: str,
        *,
        jobs: Sequence[PodJobs] = (),
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._api = api
        self._rules = tuple(rules)
        self._jobs = tuple(jobs)
        self._trust_domain = trust_domain
        self._audience = audience(trust_domain)
        self._places = asyncio.Semaphore(REVIEWS_AT_A_TIME)
        self._patience = patience

    async def attest(self, evidence: str) -> Attested:
        """The pod whose token ``evidence`` is."""
        question = review_of(evidence, self._audience)
        try:
            async with asyncio.timeout(self._patience), self._places:
                status, answer = await self._api.request("POST", REVIEWS, question, MAX_REVIEW_BYTES)
        except (KubernetesUnanswered, KubernetesMisconfigured) as error:
            raise AttestationUnavailable(f"service account tokens cannot be verified: {error.what}") from error
        except TimeoutError as error:
            raise AttestationUnavailable("service account tokens cannot be verified in time") from error
        if status != 201:
            raise AttestationUnavailable(
                f"the Kubernetes API answered a TokenReview with status {status}",
                "may the authority's service account create tokenreviews?" if status in {401, 403} else "",
            )
        try:
            pod = reviewed_pod(answer, self._audience)
        except EnrolmentRefused:
            if reason := refusal_in(answer, evidence):
                _LOG.warning("Kubernetes says of a service account token: %s", reason)
            raise
        return attested(pod, self._rules, self._trust_domain, self._jobs)

    async def close(self) -> None:
        """Close the connections to the API server."""
        await self._api.close()
