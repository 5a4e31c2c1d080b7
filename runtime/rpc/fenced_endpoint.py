"""Endpoints that refuse calls without the current fencing token."""

from __future__ import annotations

from sluice.runtime.rpc.admission import check_token
from sluice.runtime.rpc.contract import Method
from sluice.runtime.rpc.endpoint import RpcEndpoint
from sluice.runtime.rpc.errors import RpcError
from sluice.runtime.rpc.mailbox import MAILBOX_CAPACITY


class FencedRpcEndpoint(RpcEndpoint):
    """An endpoint of a leader or standby. It refuses calls with another leader's token.

    ``fencing_token`` is None while it does not lead; it then serves only methods declared ``unfenced``.
    """

    def __init__(self, name: str, gateway: type, *, mailbox_capacity: int = MAILBOX_CAPACITY, job_id: str = "") -> None:
        super().__init__(name, gateway, mailbox_capacity=mailbox_capacity, job_id=job_id)
        self._fencing_token: bytes | None = None

    @property
    def fencing_token(self) -> bytes | None:
        """The token of the current leadership."""
        return self._fencing_token

    @fencing_token.setter
    def fencing_token(self, token: bytes | None) -> None:
        self._fencing_token = token

    def check_fencing(self, method: Method, token: bytes | None) -> None:
        """Raise ``FencingTokenMismatch`` unless ``token`` is the current one."""
        check_token(method, endpoint=self.name, expected=self._fencing_token, given=token)


class PermanentlyFencedRpcEndpoint(FencedRpcEndpoint):
    """An endpoint for one session, whose token never changes."""

    def __init__(
        self,
        name: str,
        gateway: type,
        fencing_token: bytes,
        *,
        mailbox_capacity: int = MAILBOX_CAPACITY,
        job_id: str = "",
    ) -> None:
        super().__init__(name, gateway, mailbox_capacity=mailbox_capacity, job_id=job_id)
        self._fencing_token = fencing_token

    @property
    def fencing_token(self) -> bytes | None:
        """The token of this session."""
        return self._fencing_token

    @fencing_token.setter
    def fencing_token(self, token: bytes | None) -> None:
        del token
        raise RpcError(f"endpoint {self.name} is permanently fenced", "start another one for another session")
