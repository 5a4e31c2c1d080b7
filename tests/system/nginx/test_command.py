"""``sluice gateway render``: what it writes is a configuration that the real nginx takes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.cli.main import app
from sluice.core.home import Home
from sluice.gateway.config import EDGE_NAME
from sluice.pki.spiffe_id import Role
from tests.integration.gateway.conftest import EdgeAuthority


@pytest.mark.parametrize("network", [False, True], ids=["sockets", "network"])
def test_rendered_configuration_is_accepted_by_nginx(
    edge_authority: EdgeAuthority, short_home: Home, binary: Path, network: bool
) -> None:
    edge_authority.issue(short_home.identity(Role.GATEWAY, EDGE_NAME))
    edge_authority.issue_internal(short_home.identity(Role.GATEWAY, "envoy"))
    if network:
        text = '[jobmanager]\nrest_host = "localhost"\n[gateway]\nauth_host = "localhost"\nport = 9443\n'
        (short_home.root / "sluice.toml").write_text(text)
    out = short_home.root / "nginx"
    arguments = ["gateway", "render", "--proxy", "nginx", "--home", str(short_home.root)]
    printed = CliRunner().invoke(app, arguments)
    assert printed.exit_code == 0, printed.output
    written = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert written.exit_code == 0, written.output
    assert (out / "nginx.conf").stat().st_mode & 0o777 == 0o600
    assert (out / "trust.pem").exists() is network
    done = subprocess.run(
        [binary, "-t", "-p", out, "-c", "nginx.conf"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr
    assert f"listen 127.0.0.1:{9443 if network else 8443} ssl http2;" in printed.stdout
