"""``sluice submit --target yarn | kubernetes``: submit to Spark's own cluster managers.

Everything is rendered into a directory first, each file readable by its owner alone; ``--render`` stops there. It
contains no key.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sluice.cli.config import Configuration, find_config_file, load
from sluice.cli.errors import (
    EXIT_NO,
    EXIT_OK,
    CommandError,
    UsageError,
)
from sluice.cli.jobs.kubernetes import Kubectl, submit_with_files
from sluice.cli.jobs.submit_target import SubmitTarget
from sluice.client import Submission
from sluice.core import Home, make_private_directory, write_secret
from sluice.pki.attestation import new_pod_job_id
from sluice.runtime import SlotProfile
from sluice.runtime.jobmanager.dispatcher import check_executor_size
from sluice.runtime.spark import ensure_plugin, find_java, find_spark
from sluice.runtime.spark.jvm import check_job_conf
from sluice.runtime.spark.managers import (
    ForeignJob,
    KubernetesJob,
    Rendering,
    hadoop_configuration,
    render_kubernetes,
    render_yarn,
)

PASSED_ENVIRONMENT = ("PATH", "HOME", "LANG", "JAVA_HOME", "KUBECONFIG", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables that spark-submit and kubectl inherit."""


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """``render``: the directory to write to, without submitting."""

    render: Path | None = None
    as_json: bool = False


def submit_to_cluster_manager(
    target: SubmitTarget, submission: Submission, home: Path, config: Path | None, options: RenderOptions
) -> int:
    """Render ``submission``, and unless ``--render`` is given submit it and wait; returns the exit code."""
    located = Home.at(home)
    configuration = load(find_config_file(config, located.root))
    if options.render is not None:
        directory = _empty_directory(options.render)
        rendering = _render(target, submission, configuration, directory)
        _write(rendering, directory)
        _say(rendering, directory, as_json=options.as_json)
        return EXIT_OK
    if target is SubmitTarget.YARN:
        hadoop_configuration(os.environ)
    with tempfile.TemporaryDirectory(prefix="sluice-submit-") as name:
        directory = Path(name)
        rendering = _render(target, submission, configuration, directory)
        _write(rendering, directory)
        command = [str(_spark_submit()), *rendering.arguments]
        if target is SubmitTarget.KUBERNETES:
            kubectl = Kubectl.find(configuration.kubernetes.namespace, _environment(os.environ))
            manifest = directory / "files.json"
            metadata = json.loads(manifest.read_bytes())["metadata"]
            submit_with_files(kubectl, metadata["labels"]["sluice/job"], metadata["name"], manifest, command)
        else:
            _run(command)
    return EXIT_OK


def _render(target: SubmitTarget, submission: Submission, configuration: Configuration, directory: Path) -> Rendering:
    job = foreign_job(submission, configuration)
    if target is SubmitTarget.YARN:
        return render_yarn(job, configuration.yarn, ensure_plugin(), directory)
    settings = configuration.kubernetes
    job_id = new_pod_job_id(settings.namespace)
    return render_kubernetes(KubernetesJob(job_id, job, settings, configuration.pki.trust_domain), directory)


def foreign_job(submission: Submission, configuration: Configuration) -> ForeignJob:
    """The job to submit, with this cluster's defaults; raises ``SubmissionRejected`` for impossible sizes."""
    request = submission.request
    ours = sorted({"savepoint", "restart", "archive_names", "python"} & request.keys())
    ours += sorted({part for part, _ in submission.files} - {"file"})
    if ours:
        raise UsageError(
            f"{', '.join(ours)} with a manager of Spark's own", "it takes --file; the rest is our cluster's"
        )
    cores, memory = int(str(request.get("executor_cores", 0))), int(str(request.get("executor_memory_mb", 0)))
    check_executor_size(cores, memory)
    default = configuration.taskmanager.profile
    asked = msgspec.convert(request.get("spark_conf", {}), dict[str, str])
    return ForeignJob(
        name=str(request.get("name") or submission.pipeline.name),
        pipeline=submission.pipeline,
        args=msgspec.convert(request.get("args", ()), tuple[str, ...]),
        files=tuple(path for _, path in submission.files),
        spark_conf={**configuration.spark.conf, **check_job_conf(asked, configuration.jobs.allow_conf)},
        executors=int(str(request.get("executors") or configuration.spark.executors)),
        executor=SlotProfile(cores=cores or default.cores, memory_mb=memory or default.memory_mb),
        driver_memory_mb=configuration.spark.driver_memory_mb,
    )


def _empty_directory(path: Path) -> Path:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} is there already", "name a new directory")
    return make_private_directory(path.absolute())


def _write(rendering: Rendering, directory: Path) -> None:
    for name, content in rendering.files.items():
        write_secret(directory / name, content)


def _say(rendering: Rendering, directory: Path, *, as_json: bool) -> None:
    command = ["spark-submit", *rendering.arguments]
    if as_json:
        print(json.dumps({"directory": str(directory), "files": sorted(rendering.files), "command": command}))
        return
    for name in sorted(rendering.files):
        print(directory / name)
    if "files.json" in rendering.files:
        print(f"kubectl apply --filename {shlex.quote(str(directory / 'files.json'))}")
    print(shlex.join(command))


def _spark_submit() -> Path:
    find_java()
    return find_spark().home / "bin" / "spark-submit"


def _run(command: list[str]) -> None:
    """Run a program in the foreground; :class:`CommandError` when it fails."""
    program = shutil.which(command[0])
    if program is None:
        raise CommandError(
            f"there is no {command[0]}", "install it, or use --render DIR and run what it prints yourself"
        )
    done = subprocess.run([program, *command[1:]], env=_environment(os.environ), check=False)
    if done.returncode != 0:
        error = CommandError(
            f"{Path(program).name} ended with exit code {done.returncode}", "its output says why", exit_code=EXIT_NO
        )
        raise error


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    passed = {name: environment[name] for name in PASSED_ENVIRONMENT if name in environment}
    return passed | {"SPARK_HOME": str(find_spark().home), "SPARK_LOCAL_IP": "127.0.0.1"}
