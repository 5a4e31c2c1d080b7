"""Receipts of jobs, as they are written to files."""

from __future__ import annotations

from typing import Any, Protocol

from sluice.pki.attestations import canonical


class Poster(Protocol):
    """What asks the cluster's REST API to do something."""

    async def post(self, path: str, document: object = None) -> Any:  # noqa: ANN401  JSON is what it is
        """POST ``document`` to ``path``."""


async def fetch_receipt(client: Poster, job_id: str, *, disclose: bool = False) -> bytes:
    """Have a receipt of the job with this id issued; the document in its canonical form."""
    answer = await client.post(f"/v1/jobs/{job_id}/receipts", {"disclose_parameters": disclose})
    return canonical(answer) + b"\n"
