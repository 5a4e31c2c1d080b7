"""Queries to DNS servers, each limited in time and size of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sluice.pki.acme.config import parse_resolver
from sluice.pki.acme.problems import AcmeProblem, ProblemType

if TYPE_CHECKING:
    import dns.asyncresolver
    import dns.resolver

LIFETIME_SECONDS = 5.0
"""For one query, with all its attempts."""
MAX_RECORDS = 64
MAX_TEXT_BYTES = 512


class DnsResolver:
    """Queries the configured servers, or those of the machine; ignores hosts files."""

    def __init__(self, servers: Sequence[str] = ()) -> None:
        self._servers = tuple(parse_resolver(each) for each in servers)

    async def addresses(self, name: str) -> tuple[str, ...]:
        """The addresses of ``name``, IPv4 first."""
        found: list[str] = []
        problem: AcmeProblem | None = None
        for kind in ("A", "AAAA"):
            try:
                found += [str(record.address) for record in (await self._ask(name, kind))[:MAX_RECORDS]]
            except AcmeProblem as error:
                problem = error
        if not found and problem is not None:
            raise problem
        return tuple(found)

    async def texts(self, name: str) -> tuple[bytes, ...]:
        """The TXT records of ``name``."""
        records = await self._ask(name, "TXT")
        joined = (b"".join(record.strings) for record in records[:MAX_RECORDS])
        return tuple(each for each in joined if len(each) <= MAX_TEXT_BYTES)

    async def _ask(self, name: str, kind: str) -> list[Any]:
        import dns.exception  # a tenth of a second, which only this server needs

        try:
            # The dot at the end: a name is never completed by a domain of this machine.
            return list(await self._resolver().resolve(f"{name}.", kind, search=False, lifetime=LIFETIME_SECONDS))
        except (dns.exception.DNSException, OSError, ValueError) as error:
            why = type(error).__name__
            raise AcmeProblem(ProblemType.DNS, f"no {kind} record of {name}: {why}") from None

    def _resolver(self) -> dns.asyncresolver.Resolver:
        import dns.asyncresolver
        import dns.nameserver

        # New for each query: the machine's servers may have changed, and nothing is cached.
        resolver = dns.asyncresolver.Resolver(configure=not self._servers)
        if self._servers:
            resolver.nameservers = [dns.nameserver.Do53Nameserver(host, port) for host, port in self._servers]
        return resolver
