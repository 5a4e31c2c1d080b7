"""schemathesis sends requests that the API description allows, and others that it does not.

No request may cause a server error, and all answers must match the description. REST is that of a real
JobManager; its driver, in the place of Spark's, ends at once. Streams are left out because they have no
end (see test_streams.py).
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

from sluice.core.home import Home
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.config import JobManagerConfig, RuntimeConfig
from sluice.runtime.processes.jobmanager import jobmanager
from sluice.runtime.rest.openapi import describe
from sluice.runtime.rest_server.routes import ROUTES
from tests.assertions import AssertingGateway
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.gateway.conftest import BackgroundLoop
from tests.integration.runtime.conftest import JOBMANAGER

EXAMPLES = 5
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
# The server in its thread draws random numbers while the strategies here do not.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module inside strategies:hypothesis.errors.HypothesisDeprecationWarning"
)
ASKED = [route for route in ROUTES if not route.stream]


class Signer(AuthBase):
    """Signs each request as the gateway does for an administrator."""

    def __init__(self, home: Home) -> None:
        self._gateway = AssertingGateway(home)

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        assert request.method is not None
        target = request.path_url
        request.headers.update(self._gateway.headers(request.method, target, "ada", "admin", raw_query=True))
        return request


class UnixAdapter(HTTPAdapter):
    """Connects to a unix socket, whatever the URL says."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__()

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> HTTPConnectionPool:
        path = self._path

        class Connection(HTTPConnection):
            def connect(self) -> None:
                self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self.sock.connect(str(path))

        class Pool(HTTPConnectionPool):
            ConnectionCls = Connection

        return Pool("rest")


@pytest.fixture(scope="module")
def rest() -> Iterator[tuple[requests.Session, str]]:
    """A session at the REST socket, and the id of a job that has ended."""
    root = Path(tempfile.mkdtemp(prefix="slc"))
    pki = TestPki(root)
    pki.issuer.issue_to(
        pki.home.identity(Role.JOBMANAGER, JOBMANAGER),
        SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, JOBMANAGER),
        ips=["127.0.0.1"],
    )
    config = RuntimeConfig(trust_domain=TRUST_DOMAIN, jobmanager=JobManagerConfig(driver_start_timeout=5.0))
    ready = asyncio.Event()

    async def serve() -> None:
        async with jobmanager(
            pki.home,
            config,
            pki.config,
            JOBMANAGER,
            issuer=LocalIssuer(pki.home, pki.config),
        ):
            ready.set()
            await asyncio.Event().wait()

    loop = BackgroundLoop()
    running = loop.start(serve())
    try:
        loop.start_value(_first(ready, running))
        with requests.Session() as session:
            session.mount("http://", UnixAdapter(pki.home.sockets / "rest.sock"))
            session.auth = Signer(pki.home)
            form = [("request", ("request", b"{}")), ("pipeline", ("p.py", b"print(1)"))]
            submitted = session.post("http://rest/v1/jobs", files=form)
            assert submitted.status_code == 202, submitted.text
            yield session, submitted.json()["job_id"]
    finally:
        loop.stop(running)
        loop.close()
        shutil.rmtree(root)


async def _first(ready: asyncio.Event, running: Any) -> None:
    async with asyncio.timeout(20):
        while not ready.is_set():
            assert not running.done(), running.exception()
            await asyncio.sleep(0.02)


SCHEMA = schemathesis.openapi.from_dict(describe(ROUTES, "1.0"))


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["allowed", "not allowed"])
@pytest.mark.parametrize("route", [pytest.param(route, id=route.id) for route in ASKED])
def test_rest_answers_as_the_openapi_document_describes_without_server_errors(
    rest: tuple[requests.Session, str], route: Any, mode: GenerationMode
) -> None:
    session, job_id = rest
    operation = SCHEMA[route.path][route.method]
    try:
        strategy = operation.as_strategy(generation_mode=mode)
    except schemathesis.errors.InvalidSchema as error:  # pragma: no cover
        raise AssertionError(route.id) from error

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def ask(case: schemathesis.Case[Any]) -> None:
        if len(str((case.path_parameters or {}).get("job_id", ""))) % 2:
            case.path_parameters["job_id"] = job_id
        response = case.call(base_url="http://rest", session=session, timeout=30)
        case.validate_response(response, checks=CHECKS)

    ask()
