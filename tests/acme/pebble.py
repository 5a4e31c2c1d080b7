"""Pebble, an ACME server for tests, with the DNS server that it asks; it validates everything for real."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509

from tests.free_ports import free_ports
from tests.outside import OutsideAuthority
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
EAB_KEY_ID = "kid-1"
EAB_KEY = base64.urlsafe_b64encode(bytes(range(32))).rstrip(b"=").decode()


@dataclass
class Pebble:
    """One server, which validates at these ports of 127.0.0.1 whatever the name.

    Attributes:
        directory: for its files.
        http_port: where it asks for http-01.
        tls_port: where it asks for tls-alpn-01.
        environment: how it misbehaves, see Pebble's README.
        eab: whether it wants an external account binding.
    """

    directory: Path
    http_port: int
    tls_port: int
    environment: dict[str, str] = field(default_factory=dict)
    eab: bool = False
    lifetime_seconds: int = 0
    port: int = 0
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._authority = OutsideAuthority(self.directory / "https")
        self._certificate = self._authority.issue("localhost", "127.0.0.1")
        self.ca_file = self._certificate / "ca.pem"
        self.port, self._management, self._dns, self._dns_management = free_ports(4)

    @property
    def url(self) -> str:
        """Of its directory."""
        return f"https://127.0.0.1:{self.port}/dir"

    def start(self) -> None:
        """Start it; a restarted one has forgotten everything."""
        found = subprocess.run([ROOT / "scripts" / "ensure-pebble"], check=True, capture_output=True, text=True)
        pebble, names = found.stdout.split()
        config = {
            "listenAddress": f"127.0.0.1:{self.port}",
            "managementListenAddress": f"127.0.0.1:{self._management}",
            "certificate": str(self._certificate / "chain.pem"),
            "privateKey": str(self._certificate / "key.pem"),
            "httpPort": self.http_port,
            "tlsPort": self.tls_port,
            "ocspResponderURL": "",
            "externalAccountBindingRequired": self.eab,
            "externalAccountMACKeys": {EAB_KEY_ID: EAB_KEY} if self.eab else {},
        }
        if self.lifetime_seconds:
            config["certificateValidityPeriod"] = self.lifetime_seconds
        path = self.directory / "pebble.json"
        path.write_text(json.dumps({"pebble": config}))
        dns = [names, "-dns01", f"127.0.0.1:{self._dns}", "-management", f"127.0.0.1:{self._dns_management}"]
        dns += ["-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv6", ""]
        self._run(dns, {})
        environment = {"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_AUTHZREUSE": "0", **self.environment}
        assert "PEBBLE_VA_ALWAYS_VALID" not in environment
        self._run([pebble, "-config", str(path), "-dnsserver", f"127.0.0.1:{self._dns}"], environment)
        wait_until(self._answers, self.log)

    def stop(self) -> None:
        """End both."""
        while self._processes:
            process = self._processes.pop()
            process.kill()
            process.wait()

    def roots(self) -> bytes:
        """The authority that signs, anew with each start (PEM)."""
        return self._get("/roots/0")

    def status_of(self, serial: int) -> str:
        """Whether it has issued this certificate, as it says itself."""
        return str(json.loads(self._get(f"/cert-status-by-serial/{serial:x}"))["Status"])

    def log(self) -> str:
        """What it has told."""
        return (self.directory / "log").read_text(errors="replace")[-4000:]

    def _run(self, command: list[str], environment: dict[str, str]) -> None:
        with (self.directory / "log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(command, stdout=log, stderr=log, env={"PATH": os.environ["PATH"], **environment})
            )

    def _answers(self) -> bool:
        assert all(each.poll() is None for each in self._processes), self.log()
        try:
            return bool(x509.load_pem_x509_certificates(self.roots()))
        except OSError:
            return False

    def _get(self, path: str) -> bytes:
        context = ssl.create_default_context(cafile=str(self.ca_file))
        with urllib.request.urlopen(
            f"https://127.0.0.1:{self._management}{path}", timeout=10, context=context
        ) as answer:
            data: bytes = answer.read()
            return data
