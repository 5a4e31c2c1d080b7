"""Gets receipts of jobs from the cluster."""

from __future__ import annotations

from typing import Any, Protocol

from sluice.pki.attestations import canonical


class Poster(Protocol):
    """Sends POST requests to the cluster's REST API."""

    async def post(self, path: str, document: object = None) -> Any:  # noqa: ANN401  JSON is what it is
        """POST ``document`` to ``path``."""


async def fetch_receipt(client: Poster, job_id: str, *, disclose: bool = False) -> bytes:
    """Have a receipt issued for the job with this id; returns the document in its canonical form."""
    answer = await client.post(f"/v1/jobs/{job_id}/receipts", {"disclose_parameters": disclose})
    return canonical(answer) + b"\n"
