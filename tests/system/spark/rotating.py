"""A running job whose authorities can be replaced: who signs, who is trusted, what processes report."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import psutil
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.core.files import write_public
from sluice.pki.authorities.signing import to_pem
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.identities.directory import read_identity, write_identity
from sluice.pki.revocation.crl import Reason, Revocation, sign_crl
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.trust import PLACED_REPORT, read_reports
from sluice.pki.x509.profiles import AuthorityKind
from sluice.runtime.spark.evidence import read_evidence
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.spark.conftest import Rounds
from tests.integration.spark.small_cluster import ACCEPT, JOB_ID, reports_of
from tests.integration.spark.test_data_channel import EXECUTOR, blocks_of, driver_blocks, driver_rpc
from tests.waiting import until

DEADLINE_SECONDS = 60.0


def authority_of(pki: TestPki) -> x509.Certificate:
    """The certificate of the internal authority."""
    return AuthorityStore(pki.home.pki).load(AuthorityKind.INTERNAL).certificate


def key_id(authority: x509.Certificate) -> str:
    """The subject key identifier in hexadecimal."""
    return authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest.hex()


@dataclass
class Rotation:
    """Who signs and who is trusted at present.

    ``unreportable`` contains the executors that cannot write their report.
    """

    signer: TestPki
    trusted: tuple[TestPki, ...]
    unreportable: set[int] = field(default_factory=set)

    def issue(self, directory: Path, spiffe_id: SpiffeId) -> None:
        """Write a new leaf certificate and the current trust bundle to ``directory``."""
        material, _ = read_identity(self.signer.directory(spiffe_id))
        write_identity(
            directory, key_pem=material.key_pem, chain_pem=material.chain_pem, ca_pem=self.bundle(), accept=ACCEPT
        )
        if spiffe_id in {SpiffeId.executor(TRUST_DOMAIN, JOB_ID, number) for number in self.unreportable}:
            (reports_of(directory) / "in-use.json").mkdir(parents=True)

    def reissue(self, directory: Path) -> None:
        """Replace the leaf certificate in ``directory`` and its trust bundle with current ones."""
        self.issue(directory, read_identity(directory)[0].spiffe_id)

    def trust(self, directory: Path) -> None:
        """Write only the current trust bundle to ``directory``."""
        write_public(directory / "ca.pem", self.bundle())

    def bundle(self) -> bytes:
        """The current content of ``ca.pem``."""
        return to_pem(*map(authority_of, self.trusted))

    def key_ids(self) -> list[str]:
        """The key ids of the authorities that are trusted at present."""
        return [key_id(authority_of(each)) for each in self.trusted]

    def peer(self, directory: Path) -> TlsIdentity:
        """An executor identity of the job, issued under the current signer and trust."""
        self.issue(directory, EXECUTOR)
        return TlsIdentity(directory)

    def revocation_list(self, number: int, *serials: int) -> bytes:
        """A complete CRL signed by the current signer."""
        signer = AuthorityStore(self.signer.home.pki).load(AuthorityKind.INTERNAL)
        now = utc_now()
        entries = [Revocation(f"{serial:x}", now, Reason.SUPERSEDED) for serial in serials]
        return sign_crl(signer, entries, number=number, now=now, lifetime=timedelta(days=1))


def report_path(directory: Path) -> Path:
    """The file in which the process with the identity in ``directory`` reports what it has in memory."""
    return reports_of(directory) / PLACED_REPORT


def report(directory: Path) -> dict[str, Any]:
    """The report of that process as a rotation reads it; empty if there is none."""
    found, _ = read_reports(directory)
    programs = {"driver", "executor"}  # the driver's agent has the same identity
    return next((json.loads(msgspec.json.encode(each)) for each in found if each.program in programs), {})


async def until_reported(directory: Path, **wanted: object) -> None:
    """Wait until the process reports these values for what it has in memory."""
    await until(lambda: wanted.items() <= report(directory).items())


@dataclass
class Rotating(Rounds):
    """A job whose driver keeps dialing; see ``pipelines/dialing.py``."""

    def directory_of(self, number: int) -> Path:
        """The identity directory of an executor."""
        return self.job.master.identity_dir(number)

    def directories(self) -> list[Path]:
        """Identity directories of the driver and of each executor."""
        return [self.job.identity_dir, *map(self.directory_of, self.job.master.executors)]

    def listeners(self) -> list[int]:
        """The ports on which Spark listens, in all processes of the job."""
        executors = [blocks_of(self, number) for number in self.job.master.executors]
        return [driver_rpc(self), driver_blocks(self), *executors]

    def log_of(self, number: int) -> str:
        """What an executor has logged."""
        return self.job.log(f"executor-{number}/log")

    def tally(self) -> dict[str, Any]:
        """The results of the driver's connections."""
        decoded: dict[str, Any] = json.loads((self.folder / "tally").read_text())
        return decoded

    async def dial(self, ports: list[int]) -> None:
        """Let the driver dial ``ports`` and nothing else, and wait until it does."""
        part = self.folder / "targets.part"
        part.write_text(json.dumps(ports))
        part.rename(self.folder / "targets")
        await until(lambda: self.tally()["targets"] == ports)

    async def dialed_anew(self) -> None:
        """Wait until the driver has dialed every target at least once more, from start to finish."""
        before = self.tally()["dialed"]
        await until(lambda: self.tally()["dialed"] >= before + 2 * len(self.tally()["targets"]))

    async def replace(self, number: int) -> int:
        """Kill an executor; returns the number of the executor that replaced it."""
        master = self.job.master
        joined = master.launched + 1
        psutil.Process(master.executors[number].pid).kill()
        await self.job.until(lambda: joined in master.executors and master.progress.executors_added >= joined)
        return joined

    async def until_dialed(self, number: int, other: int) -> None:
        """Give the job work until executor ``number`` has dialed executor ``other``."""
        wanted = (str(SpiffeId.executor(TRUST_DOMAIN, JOB_ID, other)), "dialed")
        async with asyncio.timeout(DEADLINE_SECONDS):
            while all(
                (line.peer, line.direction) != wanted
                for line in read_evidence(reports_of(self.directory_of(number))).connections
            ):
                await self.run()

    def between(self, number: int, other: int) -> int:
        """The number of connections between two executors."""
        port, far = blocks_of(self, number), blocks_of(self, other)
        dialed = {each.laddr.port for each in self._established(other) if each.raddr.port == port}
        mine = self._established(number)
        return sum(each.raddr.port == far or (each.laddr.port == port and each.raddr.port in dialed) for each in mine)

    def _established(self, number: int) -> list[Any]:
        connections = psutil.Process(self.job.master.executors[number].pid).net_connections("tcp")
        return [each for each in connections if each.status == psutil.CONN_ESTABLISHED]
