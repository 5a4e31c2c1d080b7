"""The identity of a driver or executor. Its key never leaves this machine; its JobMaster signs the certificate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from sluice.core import utc_now
from sluice.pki import SpiffeId
from sluice.pki.issuing import SignedChain, install_chain
from sluice.pki.x509 import new_csr


async def make_identity(directory: Path, spiffe_id: SpiffeId, sign: Callable[[bytes], Awaitable[SignedChain]]) -> None:
    """Generate a key, have its CSR (PEM) signed, and write key and chain. A running JVM reloads the files by itself."""
    key_pem, csr_pem = await asyncio.to_thread(new_csr, spiffe_id)
    signed = await sign(csr_pem)
    accept = [f"spiffe://{spiffe_id.trust_domain}/job/{spiffe_id.job_id}/*"]
    await asyncio.to_thread(install_chain, directory, key_pem, signed, accept=accept, now=utc_now())
