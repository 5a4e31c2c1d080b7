"""``sluice doctor``: whether this machine can run a cluster, and if not, what to do."""

from __future__ import annotations

import typer
from rich.console import Console

from sluice.cli.cluster import read_record
from sluice.cli.config import Configuration
from sluice.cli.doctor.machine_checks import Demand, machine_findings
from sluice.cli.doctor.machine_facts import MachineFacts, read_machine
from sluice.cli.errors import EXIT_NO
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.pki import finding_lines, print_json
from sluice.core import egress_mode, printable
from sluice.pki.inspect import Severity

_MEBIBYTE = 1 << 20


def doctor(home: HomeOption = DEFAULT_HOME, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Examine this machine before the first start: Java, Spark, Envoy, sandbox, ports, memory, disk, limits, clock.

    Each finding says what is wrong, why that matters, and what to do. Nothing is changed, nothing leaves the machine.
    Exit code 0: a cluster can be started (there may be warnings); 1: it cannot. For a home and its certificates:
    sluice pki doctor.
    """
    located, configuration = load_configuration(home, config)
    record = read_record(located)
    running = record is not None and record.launcher.find() is not None
    configuration = configuration.embedded()
    isolation = configuration.isolation
    egress = egress_mode(configuration.egress, isolation.level)
    warm = configuration.warm.jvms != 0
    facts = read_machine(located.root, _ports(configuration), isolation, egress, cluster_running=running, warm=warm)
    findings = machine_findings(facts, _demand(configuration))
    fit = not any(each.severity is Severity.ERROR for each in findings)
    if as_json:
        print_json({"home": str(located.root), "fit": fit, "found": _found(facts), "findings": findings})
    else:
        console = Console()
        for name, value in _found(facts).items():
            console.print(f"{name:<8} {value}", highlight=False, markup=False, soft_wrap=True)
        for each in findings:
            for line in finding_lines(each):
                console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
        verdict = "this machine can run a cluster: sluice up" if fit else "a cluster cannot be started here yet"
        console.print(verdict, style="green" if fit else "red", highlight=False)
    if not fit:
        raise typer.Exit(EXIT_NO)


def _ports(configuration: Configuration) -> list[tuple[str, str, int]]:
    manager, gateway = configuration.jobmanager, configuration.gateway
    named = [
        ("gateway.port", gateway.host, gateway.port),
        ("jobmanager.rpc_port", manager.host, manager.rpc_port),
        ("jobmanager.blob_port", manager.host, manager.blob_port),
    ]
    if manager.rest_host:
        named.append(("jobmanager.rest_port", manager.rest_host, manager.rest_port))
    shuffle = configuration.shuffle
    if shuffle.local:
        named.append(("shuffle.manager_port", shuffle.host, shuffle.manager_port))
        named.append(("shuffle.worker_port", shuffle.host, shuffle.worker_port))
    return [each for each in named if each[2]]


def _demand(configuration: Configuration) -> Demand:
    manager, shuffle = configuration.taskmanager, configuration.shuffle
    shuffling = shuffle.manager_count + shuffle.workers if shuffle.local else 0
    # The launcher, the CA, the auth service, Envoy and a driver agent are always there.
    return Demand(
        processes=5 + configuration.jobmanager.count + manager.count + shuffling,
        slots=manager.count * manager.slots,
        slot_memory=manager.slot_memory_mb * _MEBIBYTE,
        driver_memory=configuration.spark.driver_memory_mb * _MEBIBYTE,
        slot_cores=manager.slot_cores,
        shuffle_memory=shuffle.workers * shuffle.memory_mb * _MEBIBYTE if shuffle.local else 0,
    )


def _found(facts: MachineFacts) -> dict[str, str]:
    programs = {"java": facts.java, "spark": facts.spark, "envoy": facts.envoy, "sandbox": facts.sandbox}
    return {
        "python": ".".join(map(str, facts.python)),
        **{name: program.found for name, program in programs.items() if program.found},
        "egress": str(facts.egress),
        "cores": str(facts.cores),
        "memory": f"{facts.memory_available // _MEBIBYTE} of {facts.memory // _MEBIBYTE} MiB available",
        "disk": f"{facts.home.free_bytes // _MEBIBYTE} MiB free for {facts.home.path}",
    }
