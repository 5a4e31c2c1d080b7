"""A real embedded cluster that is broken in one respect at a time, audited, and repaired.

The launcher is stopped (SIGSTOP) as soon as the cluster is up, so that it neither restarts what a test
takes away nor repairs what it breaks. To break a process, a test ends it and starts it again as
``sluice run`` with one weakness (see :mod:`tests.system.audit.sabotage`). The new process takes the old
one's place in the cluster's registry.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from sluice.audit.catalogue import CHECKS
from sluice.audit.check import Check
from sluice.audit.model import Kind, Outcome, Report
from sluice.audit.runner import examine
from sluice.audit.subject import Options
from sluice.cli.audit.commands import home_subjects
from sluice.core.home import Home
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[3]
DEADLINE_SECONDS = 60.0
OPTIONS = Options(timeout=20.0, patience=3.0, handshake_limit=13.0)
UNHURRIED = frozenset({"TLS-11", "TLS-12", "TLS-17"})
"""Checks that wait for a listener to lose its patience; left out unless a row is about them."""
QUICK = tuple(check for check in CHECKS if check.id not in UNHURRIED)
WITHOUT_REVOCATION = tuple(check for check in QUICK if check.id != "MTL-13")
"""What revokes and waits is not tried in rows about something else."""
ANNOUNCEMENTS = {"jobmanager": "jobmanager.json", "ca": "ca.json", "envoy": "envoy.json"}


def poll(probe: Callable[[], bool], what: str) -> None:
    """Wait until ``probe`` is true."""
    wait_until(probe, what, DEADLINE_SECONDS)


class BrokenCluster:
    """A cluster that tests break; see the module. Call ``start`` first and ``stop`` last."""

    def __init__(self, root: Path) -> None:
        self.home = Home.at(root)
        self._launcher: psutil.Process | None = None
        self._broken: dict[str, str] = {}
        self._published = ""
        """The weakness of the auth service that Envoy had its configuration from."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Run ``sluice up`` with one TaskManager, then suspend the launcher."""
        self._sluice("up", "--detach", "--port", "0", "--taskmanagers", "1")
        self._launcher = psutil.Process(self._record()["launcher"]["pid"])
        self._launcher.suspend()

    def stop(self) -> None:
        """End everything."""
        for process in self._processes.values():
            process.kill()
            process.wait()
        if self._launcher is not None:
            self._launcher.resume()
            self._sluice("down")

    def break_only(self, **weaknesses: str) -> None:
        """Run the named members with the given weaknesses, and all others without any."""
        for member in [each for each in self._broken if each not in weaknesses]:
            self._replace(member, "")
        for member, weakness in weaknesses.items():
            if self._broken.get(member, "") != weakness:
                self._replace(member, weakness)
        wanted = weaknesses.get("auth", "")
        if wanted != self._published:
            self._published = wanted
            self._replace("envoy", "")  # it asks the auth service for its configuration when it starts

    def findings(
        self, checks: Sequence[Check] = WITHOUT_REVOCATION, *, intrusive: bool = False
    ) -> set[tuple[str, str]]:
        """Audit the whole cluster; return the listener and check of each finding."""
        report = self.audit(checks, intrusive=intrusive)
        kinds = {each.listener.name: each.listener.kind for each in report.listeners}
        return {
            (short_name(result.listener, kinds[result.listener]), result.check)
            for result in report.results
            if result.outcome is Outcome.FINDING
        }

    def audit(self, checks: Sequence[Check], options: Options = OPTIONS, *, intrusive: bool = False) -> Report:
        """Examine the whole cluster."""
        with home_subjects(self.home.root, None, options, with_identities=True, intrusive=intrusive) as subjects:
            return examine("a broken cluster", subjects, checks=checks)

    def register(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Register ``process`` as a member of the cluster, so that the audit examines it as one."""
        record = self._record()
        entry = {"name": name, "pid": process.pid, "started_at": psutil.Process(process.pid).create_time()}
        record["children"] = [each for each in record["children"] if each["name"] != name] + [entry]
        (self.home.run / "cluster.json").write_text(json.dumps(record))

    def unregister(self, name: str) -> None:
        """Remove a process from the cluster's registry."""
        record = self._record()
        record["children"] = [each for each in record["children"] if each["name"] != name]
        (self.home.run / "cluster.json").write_text(json.dumps(record))

    def run(self, weakness: str, *arguments: str) -> subprocess.Popen[bytes]:
        """``sluice ARGUMENTS`` with ``weakness``, in the background."""
        with (self.home.logs / "broken.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.system.audit.sabotage", weakness or "none", *arguments],
                cwd=REPOSITORY,
                env=os.environ | {"SLUICE_HOME": str(self.home.root), "SLUICE__GATEWAY__PORT": "0"},
                stdout=log,
                stderr=log,
            )

    def _replace(self, member: str, weakness: str) -> None:
        """End ``member`` and start it with ``weakness``."""
        announcement = self._announcement(member)
        self._end(member)
        announcement.unlink(missing_ok=True)
        process = self._processes[member] = self.run(weakness, "run", member)
        self.register(member, process)
        log = self.home.logs / "broken.log"

        def announced() -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            return announcement.exists()

        poll(announced, f"{member} with {weakness} did not come up")
        self._broken[member] = weakness
        if not weakness:
            del self._broken[member]

    def _announcement(self, member: str) -> Path:
        if member == "auth":
            return self.home.sockets / "auth.sock"
        return self.home.run / "endpoints" / ANNOUNCEMENTS[member]

    def _end(self, member: str) -> None:
        replaced = self._processes.pop(member, None)
        if replaced is not None:
            replaced.send_signal(signal.SIGTERM)
            try:
                replaced.wait(DEADLINE_SECONDS)
            except subprocess.TimeoutExpired:
                replaced.kill()
                replaced.wait()
            return
        pid = next(each["pid"] for each in self._record()["children"] if each["name"] == member)
        process = psutil.Process(pid)
        process.terminate()
        # its parent stands still and takes no notice
        poll(lambda: process.status() == psutil.STATUS_ZOMBIE, f"{member} does not end")

    def _record(self) -> Any:
        return json.loads((self.home.run / "cluster.json").read_text())

    def _sluice(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "sluice.cli.main", *arguments]
        environment = os.environ | {"SLUICE_HOME": str(self.home.root)}
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stderr


def short_name(listener: str, kind: Kind) -> str:
    """A listener's name without what differs from run to run."""
    return "undeclared" if kind is Kind.UNDECLARED else listener.partition("-")[0]
