"""Signs the certificates of a job's processes. Their private keys are made where they run, and never leave there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from sluice.pki import SpiffeId
from sluice.pki.issuing import Issuer, SignedChain


@dataclass(frozen=True, slots=True)
class JobIdentities:
    """Signs the identities of jobs' processes; certificates are valid for ``lifetime``."""

    issuer: Issuer
    trust_domain: str
    lifetime: timedelta

    async def sign_driver(self, job_id: str, csr_pem: bytes) -> SignedChain:
        """Sign a CSR for the identity of the driver of ``job_id``, and for nothing else."""
        return await self._sign(SpiffeId.driver(self.trust_domain, job_id), csr_pem)

    async def sign_executor(self, job_id: str, executor_id: int, csr_pem: bytes) -> SignedChain:
        """Sign a CSR for the identity of an executor of ``job_id``."""
        return await self._sign(SpiffeId.executor(self.trust_domain, job_id, executor_id), csr_pem)

    async def _sign(self, spiffe_id: SpiffeId, csr_pem: bytes) -> SignedChain:
        return await asyncio.to_thread(self.issuer.sign_csr, csr_pem, spiffe_id, lifetime=self.lifetime)
