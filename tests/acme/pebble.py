"""Runs Pebble, an ACME server for tests, and its DNS server. All validations are real."""

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
    """A Pebble server. It validates every name at the given ports of 127.0.0.1.

    Attributes:
        directory: the directory for its files.
        http_port: the port that it contacts for http-01.
        tls_port: the port that it contacts for tls-alpn-01.
        environment: environment variables that make it misbehave; see Pebble's README.
        eab: whether it requires an external account binding.
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
        """The URL of its ACME directory."""
        return f"https://127.0.0.1:{self.port}/dir"

    def start(self) -> None:
        """Start Pebble and its DNS server. Pebble keeps no state across restarts."""
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
        """Kill Pebble and its DNS server."""
        while self._processes:
            process = self._processes.pop()
            process.kill()
            process.wait()

    def roots(self) -> bytes:
        """Return the root certificate of its signing authority (PEM). Each start creates a new authority."""
        return self._get("/roots/0")

    def status_of(self, serial: int) -> str:
        """Return the status that Pebble reports for the certificate with this serial number."""
        return str(json.loads(self._get(f"/cert-status-by-serial/{serial:x}"))["Status"])

    def log(self) -> str:
        """Return the end of the log of both servers."""
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
