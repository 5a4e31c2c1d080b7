"""Renders a submission to Spark on YARN. The identities are on the nodes; YARN distributes only the plugin's jar."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from sluice.runtime.spark.errors import SparkError
from sluice.runtime.spark.managers.submission import (
    ForeignJob,
    Rendering,
    common_conf,
    properties,
)

PLUGIN_NAME = "sluice-spark.jar"
"""The name of the plugin's jar in the working directory of each container."""


class YarnConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The target of ``sluice submit --target yarn``; ``HADOOP_CONF_DIR`` describes the cluster itself."""

    identity: str = ""
    """Directory with the identity of a job's processes on every node, readable for the user of the containers."""
    queue: str = ""


def hadoop_configuration(environment: Mapping[str, str]) -> Path:
    """The directory with YARN's configuration.

    Raises:
        SparkError: ``HADOOP_CONF_DIR`` is not set, or has no ``yarn-site.xml``.
    """
    text = environment.get("HADOOP_CONF_DIR") or environment.get("YARN_CONF_DIR") or ""
    if not text:
        raise SparkError("HADOOP_CONF_DIR is not set", "point it at the directory with core-site.xml and yarn-site.xml")
    directory = Path(text)
    if not (directory / "yarn-site.xml").is_file():
        raise SparkError(
            f"HADOOP_CONF_DIR is {directory}, which has no yarn-site.xml", "point it at YARN's configuration"
        )
    return directory


def render_yarn(job: ForeignJob, config: YarnConfig, plugin: Path, directory: Path) -> Rendering:
    """Render the submission, with paths in ``directory``; ``plugin`` is the local path of the plugin's jar.

    Raises:
        SparkError: the configuration is incomplete.
        ForbiddenSparkConf: the job sets a reserved setting.
    """
    if not Path(config.identity).is_absolute():
        raise SparkError(
            f"yarn.identity is {config.identity!r}", "name the directory with the job's identity on every node"
        )
    conf = {
        **common_conf(job, agent=PLUGIN_NAME, identity=config.identity),
        "spark.master": "yarn",
        "spark.yarn.dist.files": ",".join([f"{plugin}#{PLUGIN_NAME}", *(str(path.absolute()) for path in job.files)]),
        "spark.yarn.maxAppAttempts": "1",
    }
    if config.queue:
        conf["spark.yarn.queue"] = config.queue
    arguments = ("--properties-file", str(directory / "spark.properties"), str(job.pipeline.absolute()), *job.args)
    return Rendering({"spark.properties": properties(conf)}, arguments)
