"""``sluice up``, ``status`` and ``down``: the whole cluster on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from typing import Annotated

import msgspec
import psutil
import typer
from rich.console import Console

from sluice.cli.cluster.records import ClusterRecord, end_survivors, launcher_lock, read_record, record_path
from sluice.cli.errors import EXIT_NO, CommandError
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.core import EgressMode, Home, SluiceError, egress_endpoint, read_bounded
from sluice.runtime.node import Registration
from sluice.runtime.sandbox import IsolationLevel

DETACH_TIMEOUT_SECONDS = 150.0
DOWN_TIMEOUT_SECONDS = 60.0


def up(
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when the cluster is ready.")] = False,
    taskmanagers: Annotated[
        int | None, typer.Option(min=1, max=64, help="TaskManagers to start; default: taskmanager.count.")
    ] = None,
    jobmanagers: Annotated[
        int | None, typer.Option(min=1, max=8, help="JobManagers to start; one leads; default: jobmanager.count.")
    ] = None,
    authorities: Annotated[
        int | None,
        typer.Option(min=1, max=8, help="Online authorities to start; any of them answers; default: ca.count."),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, max=256, help="Slots of each TaskManager; default: taskmanager.slots.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="HTTPS port of the gateway; 0: any free; default: gateway.port."),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start the cluster: CA, Envoy, auth service, JobManager, TaskManagers, each with its own certificate.

    In the foreground it stops with Ctrl-C; with --detach use `sluice down`. Jobs run in sandboxes: where this machine
    cannot make any, the cluster does not start, and the message says what to do. [isolation] level = "none" in
    sluice.toml goes without.
    """
    from sluice.cli.cluster.launcher import Launcher, run_until_signal
    from sluice.cli.config import find_config_file
    from sluice.core import configure_logging

    located, configuration = load_configuration(
        home,
        config,
        ca__count=authorities,
        jobmanager__count=jobmanagers,
        taskmanager__count=taskmanagers,
        taskmanager__slots=slots,
        gateway__port=port,
    )
    if detach:
        _up_detached(located, as_json=as_json)
        return
    configure_logging()
    console = Console(stderr=True)

    def report(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    launcher = Launcher(located, configuration, find_config_file(config, located.root), report)
    asyncio.run(run_until_signal(launcher, lambda: _say_ready(located, console, as_json=as_json)))
    console.print("the cluster is down", highlight=False)


def _say_ready(home: Home, console: Console, *, as_json: bool) -> None:
    address = json.loads((home.run / "endpoints" / "envoy.json").read_text())
    record = read_record(home)
    seconds = record.ready_at - record.started_at if record else 0.0
    if as_json:
        ready = {"gateway": f"https://{address['host']}:{address['port']}", "home": str(home.root), "seconds": seconds}
        print(json.dumps(ready), flush=True)
        return
    console.print(
        f"ready after {seconds:.1f} s: https://{address['host']}:{address['port']}", highlight=False, soft_wrap=True
    )
    if any(each.isolation is IsolationLevel.NONE for each in _registered(home).values()):
        console.print("warning: jobs run without a sandbox: they can do whatever their TaskManager can", style="red")
    if not (home.root / "token").exists():
        console.print(
            f"make a token:  sluice token create {os.environ.get('USER', 'me')} --role submitter "
            f"--home {home.root} --output {home.root / 'token'}",
            highlight=False,
            soft_wrap=True,
        )


def _up_detached(home: Home, *, as_json: bool) -> None:
    """Run this command without --detach in a new session, and wait until it is ready."""
    home.create()
    log = home.logs / "launcher.log"
    argv = [argument for argument in sys.argv[1:] if argument not in {"--detach", "-d", "--json"}]
    with launcher_lock(home):  # a cluster that runs already keeps its log
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sluice.cli.main", *argv],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    deadline = time.monotonic() + DETACH_TIMEOUT_SECONDS
    try:
        while time.monotonic() < deadline:
            if (code := process.poll()) is not None:
                told = log.read_text(errors="replace").strip()
                raise CommandError(
                    "the cluster did not start", f"{log} says:\n{told}", exit_code=code if code > 0 else EXIT_NO
                )
            record = read_record(home)
            if record is not None and record.ready and record.launcher.pid == process.pid:
                _say_ready(home, Console(stderr=True), as_json=as_json)
                return
            time.sleep(0.1)
    except KeyboardInterrupt:
        process.terminate()  # it is in a session of its own, which Ctrl-C does not reach
        raise
    process.terminate()
    raise CommandError(
        f"the cluster was not ready within {DETACH_TIMEOUT_SECONDS:.0f} s", f"see {home.logs}", exit_code=EXIT_NO
    )


def down(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Stop the cluster and everything that runs in it. Unfinished jobs start again with the next `sluice up`."""
    located = Home.at(home)
    record = read_record(located)
    ended = 0
    if record is not None:
        ended = _stop(record)
        record_path(located).unlink(missing_ok=True)
    if as_json:
        print(json.dumps({"stopped": ended > 0}))
    else:
        print("the cluster is down" if ended else f"no cluster is running in {located.root}")


def _stop(record: ClusterRecord) -> int:
    """Ask the launcher to stop normally; then end remaining processes."""
    launcher = record.launcher.find()
    stopped = 0
    if launcher is not None:
        with contextlib.suppress(psutil.Error):
            launcher.terminate()
            stopped = 1
            launcher.wait(DOWN_TIMEOUT_SECONDS)
    return stopped + end_survivors(record)


def status(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Show which processes run, and where the gateway listens. Exit code 1 if the cluster is not ready."""
    located = Home.at(home)
    record = read_record(located)
    alive = record is not None and record.launcher.find() is not None
    members = [] if record is None else [(entry, entry.find()) for entry in record.children]
    gateway = None
    with contextlib.suppress(OSError, ValueError):
        address = json.loads((located.run / "endpoints" / "envoy.json").read_text())
        gateway = f"https://{address['host']}:{address['port']}"
    outside = None
    with contextlib.suppress(OSError, ValueError):
        address = json.loads(egress_endpoint(located).read_text())
        outside = f"{address['host']}:{address['port']}"
    registered = _registered(located) if alive else {}
    document = {
        "home": str(located.root),
        "running": alive,
        "ready": bool(alive and record and record.ready),
        "gateway": gateway if alive else None,
        "startup_seconds": record.ready_at - record.started_at if alive and record and record.ready else None,
        "isolation": {name: each.isolation.value for name, each in registered.items()},
        "egress": {name: each.egress.value for name, each in registered.items()},
        "egress_listener": outside if alive else None,
        "processes": [
            {"name": entry.name, "pid": entry.pid, "running": process is not None} for entry, process in members
        ],
    }
    if as_json:
        print(json.dumps(document))
    elif not alive:
        print(f"no cluster is running in {located.root}")
    else:
        print(f"cluster in {located.root}: {'ready' if document['ready'] else 'starting'}")
        print(f"gateway: {gateway or 'not up yet'}")
        if registered:
            print(f"isolation of jobs: {', '.join(sorted({each.isolation for each in registered.values()}))}")
            print(f"egress of jobs: {', '.join(sorted({each.egress for each in registered.values()}))}")
        if outside:
            print(f"connections of jobs to hosts outside: {outside}")
        for name, each in sorted(registered.items()):
            if each.isolation is IsolationLevel.NONE:
                print(f"  warning: jobs on {name} run without a sandbox")
            elif each.egress is EgressMode.OFF:
                print(f"  warning: jobs on {name} connect to whatever it can reach")
        for entry, process in members:
            print(f"  {entry.name:<16} pid {entry.pid:<8} {'running' if process else 'gone'}")
    raise typer.Exit(0 if document["ready"] else EXIT_NO)


def _registered(home: Home) -> dict[str, Registration]:
    """The registered TaskManagers by name."""
    found = {}
    for path in sorted((home.run / "endpoints").glob("taskmanager-*.json")):
        with contextlib.suppress(SluiceError, msgspec.MsgspecError):
            each = msgspec.json.decode(read_bounded(path), type=Registration)
            found[each.name] = each
    return found
