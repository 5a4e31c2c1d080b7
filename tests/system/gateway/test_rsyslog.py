"""The audit log at an unmodified rsyslogd, by syslog over TLS, as the how-to guide configures it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.gateway.audit_export.cursor import Cursor, CursorFile
from sluice.gateway.audit_export.exporter import Exporter
from sluice.gateway.audit_export.senders import DeliveryFailed, create_sender
from sluice.gateway.audit_log.chain import AuditRecord, verify
from sluice.gateway.audit_log.keys import VERIFICATION_KEY, VerificationKey
from sluice.gateway.audit_log.log import AuditLog
from sluice.gateway.config import AuditExportConfig
from tests.free_ports import free_port
from tests.outside import OutsideAuthority
from tests.waiting import until

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "howto" / "export-audit-log.md"


@pytest.fixture(scope="module")
def rsyslogd() -> tuple[Path, Path]:
    """The program, and the directory of its modules."""
    found = subprocess.run([ROOT / "scripts" / "ensure-rsyslog"], check=True, capture_output=True, text=True)
    program, modules = found.stdout.split()
    return Path(program), Path(modules)


@contextlib.contextmanager
def running(rsyslogd: tuple[Path, Path], directory: Path, identity: Path, port: int) -> Iterator[Path]:
    """The guide's configuration, with paths of this test; yields the file of messages."""
    block = re.search(r"```text\n(global.*?)```", GUIDE.read_text(), re.DOTALL)
    assert block is not None
    text = block[1].replace('port="6514"', f'port="{port}" address="127.0.0.1"')
    for name in ("ca", "cert", "key"):
        file = "chain" if name == "cert" else name
        text = text.replace(f"/etc/rsyslog/{name}.pem", str(identity / f"{file}.pem"))
    output = directory / "messages"
    template = "%pri% %app-name% %msgid% %msg%\\n"
    text += f'template(name="all" type="string" string="{template}")\n'
    text += f'action(type="omfile" file="{output}" template="all")\n'
    (directory / "rsyslog.conf").write_text(text)
    program, modules = rsyslogd
    process = subprocess.Popen(
        [program, "-n", "-f", directory / "rsyslog.conf", "-i", directory / "pid", "-M", modules],
        env={**os.environ, "LD_LIBRARY_PATH": str(modules.parent)},
    )
    try:
        yield output
    finally:
        process.terminate()
        process.wait(60)


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


async def test_rsyslog_receives_every_line_of_the_chain_across_a_restart(
    rsyslogd: tuple[Path, Path], tmp_path: Path
) -> None:
    authority = OutsideAuthority(tmp_path / "authority")
    identity = authority.issue("localhost")
    port = free_port()
    to = AuditExportConfig(name="siem", kind="syslog", url=f"tls://localhost:{port}", ca_file=str(authority.ca_file))
    log_file = tmp_path / "audit" / "current.jsonl"
    exporter = Exporter("siem", log_file.parent, CursorFile(tmp_path / "export" / "siem.json"), create_sender(to))
    (tmp_path / "export").mkdir(mode=0o700)

    def write() -> None:
        with contextlib.closing(AuditLog(log_file)) as log:
            for number in range(700):
                log.append(AuditRecord(event="decision", path=f"/größe/{number}", reason="x" * (number % 7000)))

    write()
    lines: list[bytes] = []
    for attempt in range(2):
        with running(rsyslogd, tmp_path, identity, port) as output:
            await until(lambda: accepts(port), "rsyslogd does not listen")
            while await exporter.step():
                pass
            count = CursorFile(tmp_path / "export" / "siem.json").read().lines
            await until(lambda: output.exists() and output.read_bytes().count(b"\n") >= count, "not all written")  # noqa: B023
            lines = output.read_bytes().splitlines()
        if not attempt:
            write()
            with pytest.raises(DeliveryFailed):
                await exporter.step()
    assert {each.split(b" ")[0] for each in lines} == {b"110"}
    key = VerificationKey.read(log_file.parent / VERIFICATION_KEY)
    chain = verify([each.split(b" ", 3)[3] for each in lines], key.checker())
    kept: Cursor = CursorFile(tmp_path / "export" / "siem.json").read()
    assert chain == kept.state
    assert len([each for each in lines if json.loads(each.split(b" ", 3)[3])["event"] == "decision"]) == 1400
