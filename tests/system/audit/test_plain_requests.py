"""nginx answers plain HTTP on a TLS port with an error, which is a refusal and no plaintext service."""

from __future__ import annotations

import subprocess
from pathlib import Path

from sluice.audit.catalogue import by_id
from sluice.audit.model import Kind, Listener, Outcome
from sluice.audit.runner import examine
from sluice.audit.subject import Options, Subject
from tests.free_ports import free_ports
from tests.integration.programs.ports import exchange, is_open, running, tail, until
from tests.outside import OutsideAuthority

ROOT = Path(__file__).resolve().parents[3]
CONFIGURATION = """\
daemon off;
master_process off;
pid {root}/pid;
error_log stderr info;
events {{}}
http {{
    access_log off;
    client_body_temp_path {root}/body; proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/fastcgi;
    uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi;
    ssl_certificate {identity}/chain.pem;
    ssl_certificate_key {identity}/key.pem;
    server {{ listen 127.0.0.1:{secure} ssl; ssl_protocols TLSv1.2 TLSv1.3; }}
    server {{ listen 127.0.0.1:{plain}; location / {{ return 400 "The plain HTTP request\\n"; }} }}
}}
"""


def test_audit_finds_plaintext_on_nginxs_http_port_and_not_on_its_tls_port(tmp_path: Path) -> None:
    found = subprocess.run([ROOT / "scripts" / "ensure-nginx"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    authority = OutsideAuthority(tmp_path / "authority")
    identity = authority.issue("127.0.0.1")
    secure, plain = free_ports(2)
    configuration = tmp_path / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(root=tmp_path, identity=identity, secure=secure, plain=plain))
    log = tmp_path / "nginx.log"
    with running([found.stdout.strip(), "-c", configuration, "-p", tmp_path], log):
        until(lambda: is_open(secure) and is_open(plain), lambda: tail(log))
        request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert b"plain HTTP request was sent to HTTPS port" in exchange(secure, None, request)
        checks = [by_id()[name] for name in ("TLS-01", "TLS-02", "TLS-04", "CRT-07", "CRT-09", "CRT-10")]
        listeners = [
            Listener(name=name, kind=Kind.SERVER, host="127.0.0.1", port=port, server_name="127.0.0.1", foreign=True)
            for name, port in (("secure", secure), ("plain", plain))
        ]
        report = examine(
            "nginx", [Subject(each, Options(), anchors=(authority.certificate,)) for each in listeners], checks=checks
        )
    results = [result for result in report.results if result.outcome is Outcome.FINDING]
    assert [(result.listener, result.check, result.severity) for result in results] == [
        ("secure", "TLS-04", "info"),
        ("plain", "TLS-01", "critical"),
    ]
