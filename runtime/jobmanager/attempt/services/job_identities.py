"""Signing the identities of a job's processes: their keys are made where they run, and never seen here."""

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
        """Sign a CSR that asks for the identity of the driver of ``job_id`` and for nothing else."""
        return await self._sign(SpiffeId.driver(self.trust_domain, job_id), csr_pem)

    async def sign_executor(self, job_id: str, executor_id: int, csr_pem: bytes) -> SignedChain:
        """Sign the identity of an executor."""
        return await self._sign(SpiffeId.executor(self.trust_domain, job_id, executor_id), csr_pem)

    async def _sign(self, spiffe_id: SpiffeId, csr_pem: bytes) -> SignedChain:
        return await asyncio.to_thread(self.issuer.sign_csr, csr_pem, spiffe_id, lifetime=self.lifetime)
