"""The Python API for jobs: blocking calls over the client that the ``sluice`` command uses, too."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sluice.client.blocking import BlockingGateway
from sluice.client.errors import JobFailed
from sluice.client.job_logs import JobLog
from sluice.client.jobs import TERMINAL, latest_jobs, whole_id
from sluice.client.patient_reader import PatientReader
from sluice.client.receipts import fetch_receipt
from sluice.client.rest_client import GatewayClient
from sluice.client.settings import ClientSettings
from sluice.client.submission import build_submission


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job at one moment.

    Attributes:
        state: such as ``RUNNING``; ``FINISHED``, ``FAILED`` and ``CANCELED`` are final.
        pending_reason: what a job waits for; empty otherwise, and in lists.
        error: why a job failed, in one line; empty otherwise, and in lists.
    """

    id: str
    name: str
    owner: str
    state: str
    started_at: dt.datetime
    ended_at: dt.datetime | None
    pending_reason: str = ""
    error: str = ""

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self.state in TERMINAL


class Client:
    """A client of one cluster, through its gateway. Thread-safe; use it in a ``with`` block or call :meth:`close`.

    Args:
        server: URL of the gateway; default: ``SLUICE_SERVER``, or the cluster that runs in ``home``.
        home: home of a local cluster; default: ``SLUICE_HOME``, or ``.sluice``.
        ca: PEM file with the authority of the gateway's certificate; default: ``SLUICE_CA``, that of the local
            cluster, or with ``server`` the system's authorities.
        token_file: file with the API token; default: the first that belongs to this gateway of ``SLUICE_TOKEN``, the
            session of ``sluice login``, and the file ``token`` in ``home``.

    Every method that asks the cluster raises a :class:`~sluice.client.errors.ClientError`:
    :class:`~sluice.client.errors.AwayError` when nobody answers,
    :class:`~sluice.client.errors.UnreachableError` when the gateway does not accept the token, and
    :class:`~sluice.client.errors.RefusedError` when it refuses the request.

    Raises:
        UsageError: no credential belongs to the gateway, or an argument is wrong.
        UnreachableError: no cluster runs in ``home``, and no ``server`` is given.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        home: str | Path | None = None,
        ca: str | Path | None = None,
        token_file: str | Path | None = None,
    ) -> None:
        self._access = ClientSettings.of(server, home, ca, token_file).access()
        self._gateway = BlockingGateway(self._access)

    def __repr__(self) -> str:
        return f"Client({self._access.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Jobs go on. Later calls raise :class:`ClientError`."""
        self._gateway.close()

    def submit(
        self,
        pipeline: str | Path,
        args: Iterable[str] = (),
        *,
        name: str = "",
        executors: int | None = None,
        executor_cores: int | None = None,
        executor_memory: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        files: Sequence[str | Path] = (),
        py_files: Sequence[str | Path] = (),
        archives: Sequence[str | Path] = (),
        python: str = "",
        restart: Mapping[str, Any] | None = None,
        from_savepoint: str = "",
        token_files: Mapping[str, str] | None = None,
        aws_role_arn: str = "",
        secrets: Sequence[str] = (),
        executor_secrets: Sequence[str] = (),
        queue: str = "",
        priority: int = 0,
    ) -> Job:
        """Upload a pipeline with its files and submit it. Returns when the cluster has accepted the job.

        Args:
            pipeline: a Python file.
            args: its command line.
            name: of the job; default: the name of the file.
            executors: how many; this and the other sizes default to the cluster's configuration.
            executor_cores: of each executor.
            executor_memory: heap of each executor, such as ``2g`` or ``1536m``.
            spark_conf: Spark settings.
            files: files in the working directory of driver and executors.
            py_files: ``.py``, ``.zip``, ``.egg`` or ``.whl`` for Python's path.
            archives: archives to unpack, each ``FILE`` or ``FILE#DIRECTORY``.
            python: path of a Python interpreter in an archive; default: the cluster's.
            restart: restart strategy and its settings, such as ``{"strategy": "fixed-delay", "attempts": 3}``.
            from_savepoint: id or path of the savepoint that streaming queries resume from.
            token_files: file name -> audience of the job's token in that file, if the policy allows it.
            aws_role_arn: the role that clients of AWS in the job take with the first of these tokens.
            secrets: what the driver gets as files below ``/run/secrets``, each ``NAME[@VERSION][=FILE]``.
            executor_secrets: the same for driver and executors.
            queue: whose share of the slots the executors get; default: the first one that you may use.
            priority: in the queue, up to what it allows.

        Raises:
            UsageError: a file does not exist, or an amount of memory is malformed.
        """
        submission = build_submission(
            Path(pipeline),
            args,
            name=name,
            executors=executors,
            executor_cores=executor_cores,
            executor_memory=executor_memory,
            spark_conf=spark_conf,
            files=[Path(each) for each in files],
            py_files=[Path(each) for each in py_files],
            archives=[str(each) for each in archives],
            python=python,
            restart=restart,
            savepoint=from_savepoint,
            token_files=token_files,
            aws_role_arn=aws_role_arn,
            secrets=secrets,
            executor_secrets=executor_secrets,
            queue=queue,
            priority=priority,
        )
        job_id = self._gateway.call(
            lambda client: client.submit(submission.pipeline, submission.request, submission.files)
        )
        return Job(self._gateway, job_id)

    def jobs(self, states: Collection[str] = (), *, owner: str = "", limit: int = 1000) -> list[JobStatus]:
        """The latest jobs, newest first, in one of ``states`` (empty: any), of ``owner`` (empty: anybody)."""
        found = self._gateway.call(lambda client: latest_jobs(client, frozenset(states), owner, limit))
        return [_status(each) for each in found]

    def job(self, job_id: str) -> Job:
        """The job with this id, or the only one whose id begins with it.

        Raises:
            UsageError: several jobs' ids begin with it.
            RefusedError: no job's id begins with it.
        """
        return Job(self._gateway, self._gateway.call(lambda client: whole_id(client, job_id)))


class Job:
    """A job of the cluster; holds no state but the id. Use it while its client is open."""

    def __init__(self, gateway: BlockingGateway, job_id: str) -> None:
        self._gateway = gateway
        self.id = job_id

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def status(self) -> JobStatus:
        """The job as it is now."""
        return _status(self._gateway.call(lambda client: client.get(f"/v1/jobs/{self.id}")))

    def wait(self, timeout: float | None = None, *, check: bool = True) -> JobStatus:
        """Block until the job has ended. If the cluster is unavailable, wait for it for two minutes.

        Args:
            timeout: in seconds; None: no limit.
            check: raise when the job did not finish successfully.

        Raises:
            JobFailed: the job failed or was cancelled, with ``check``.
            TimeoutError: the job has not ended and goes on.
        """

        async def ended(client: GatewayClient) -> dict[str, Any]:
            reader = PatientReader(client, self.id)
            async with asyncio.timeout(timeout):
                async for job in reader.states():
                    if job["state"] in TERMINAL:
                        return job
            raise AssertionError("the states of a job have no end but this")

        try:
            status = _status(self._gateway.call(ended))
        except TimeoutError:
            raise TimeoutError(f"job {self.id} has not ended within {timeout:g} s") from None
        if check and status.state != "FINISHED":
            raise JobFailed(self.id, status.state, status.error)
        return status

    def cancel(self) -> None:
        """Ask the cluster to cancel the job; :meth:`wait` then returns when it has ended."""
        self._gateway.call(lambda client: client.patch(f"/v1/jobs/{self.id}", mode="cancel"))

    def logs(self, source: str = "driver.stderr", *, follow: bool = False) -> Iterator[str]:
        """Pieces of one of the job's logs, in order.

        Args:
            source: one of :meth:`log_names`.
            follow: go on as the log grows, until the job has ended.
        """

        def pieces(client: GatewayClient) -> AsyncIterator[str]:
            log = JobLog(client, self.id, source)
            return log.follow() if follow else log.pieces()

        return self._gateway.iterate(pieces)

    def receipt(self, *, disclose_parameters: bool = False) -> bytes:
        """A signed statement about the ended job, that ``sluice jobs verify-receipt`` verifies anywhere.

        Args:
            disclose_parameters: include the arguments and Spark settings; only the job's owner can. Otherwise the
                receipt has a commitment to them.

        Raises:
            RefusedError: the job has not ended.
        """
        return self._gateway.call(lambda client: fetch_receipt(client, self.id, disclose=disclose_parameters))

    def log_names(self) -> list[str]:
        """The names of the job's logs, such as ``driver.stdout`` and ``executor-1.stderr``."""
        document = self._gateway.call(lambda client: client.get(f"/v1/jobs/{self.id}/logs"))
        return [str(name) for name in document["logs"]]


def _status(job: Mapping[str, Any]) -> JobStatus:
    return JobStatus(
        id=job["id"],
        name=job["name"],
        owner=job["owner"],
        state=job["state"],
        started_at=_time(job["start_time"]),
        ended_at=None if job["end_time"] is None else _time(job["end_time"]),
        pending_reason=job.get("pending_reason") or "",
        error=(job.get("failure") or {}).get("error") or "",
    )


def _time(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
