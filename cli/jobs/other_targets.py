"""``sluice submit --target``: submit to something other than the session cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from sluice.cli.errors import UsageError
from sluice.cli.jobs.submit_target import SubmitTarget
from sluice.client import Submission
from sluice.core import Home


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Options of a submission to something other than the session cluster."""

    home: Path
    config: Path | None = None
    server: str | None = None
    render: Path | None = None
    as_json: bool = False


def submit_to_target(target: SubmitTarget, submission: Submission, how: TargetOptions) -> int:
    """Run ``submission`` on ``target``, wait for its end, and return the exit code."""
    if how.server is not None:
        raise UsageError(f"--server with --target {target}", "the submission does not go through a gateway of Sluice")
    if target is SubmitTarget.PER_JOB:
        from sluice.cli.jobs.modes import run_per_job

        if how.render is not None:
            raise UsageError("--render with --target per-job", "use it with yarn or kubernetes")
        console = Console(stderr=True)
        return run_per_job(Home.at(how.home), how.config, submission, console, as_json=how.as_json)
    from sluice.cli.jobs.cluster_managers import RenderOptions, submit_to_cluster_manager

    options = RenderOptions(how.render, how.as_json)
    return submit_to_cluster_manager(target, submission, how.home, how.config, options)
