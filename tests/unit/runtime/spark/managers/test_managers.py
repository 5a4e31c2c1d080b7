"""What is submitted to YARN and Kubernetes: complete, confined, and without secrets."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st

from sluice.runtime.messages import SlotProfile
from sluice.runtime.spark.errors import ForbiddenSparkConf, SparkError
from sluice.runtime.spark.managers.kubernetes import (
    IDENTITY_DIRECTORY,
    PLUGIN_FILE,
    KubernetesConfig,
    KubernetesJob,
    render_kubernetes,
)
from sluice.runtime.spark.managers.submission import ForeignJob, properties
from sluice.runtime.spark.managers.yarn import YarnConfig, hadoop_configuration, render_yarn

CONFIG = KubernetesConfig(
    api="https://kube.internal:6443",
    namespace="spark",
    image="registry.internal/sluice:1",
    ca="sluice-ca.sluice.svc:8444,8445",
    service_account="spark",
    executor_service_account="spark-executor",
    executor_cpu="1500m",
)
ID = "0123456789abcdef0123456789abcdef"
TRUST_DOMAIN = "td.example"


class Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The Kubernetes API v1 fields that we write.

    Kubernetes would silently drop a misspelt field; these types refuse it.
    """


class Capabilities(Strict):
    drop: list[str]


class Seccomp(Strict):
    type: str


class ContainerSecurity(Strict):
    allow_privilege_escalation: bool
    run_as_non_root: bool
    capabilities: Capabilities
    seccomp_profile: Seccomp


class Mount(Strict):
    name: str
    mount_path: str
    read_only: bool = False


class FieldRef(Strict):
    field_path: str


class FromField(Strict):
    field_ref: FieldRef


class Variable(Strict):
    name: str
    value_from: FromField


class Container(Strict):
    name: str
    volume_mounts: list[Mount]
    security_context: ContainerSecurity
    command: list[str]
    env: list[Variable]


class EmptyDir(Strict):
    medium: str
    size_limit: str


class ServiceAccountToken(Strict):
    path: str
    audience: str
    expiration_seconds: int


class Source(Strict):
    service_account_token: ServiceAccountToken


class Projected(Strict):
    sources: list[Source]


class ConfigMapVolume(Strict):
    name: str
    optional: bool = False


class Volume(Strict):
    name: str
    empty_dir: EmptyDir | None = None
    projected: Projected | None = None
    config_map: ConfigMapVolume | None = None


class PodSecurity(Strict):
    run_as_user: int
    run_as_group: int
    fs_group: int


class PodSpec(Strict):
    automount_service_account_token: bool
    security_context: PodSecurity
    containers: list[Container]
    volumes: list[Volume]


class Metadata(Strict):
    labels: dict[str, str]
    name: str = ""
    namespace: str = ""


class Pod(Strict):
    api_version: str
    kind: str
    metadata: Metadata
    spec: PodSpec


class ConfigMap(Strict):
    api_version: str
    kind: str
    metadata: Metadata
    binary_data: dict[str, str]
    immutable: bool


@pytest.fixture
def job(tmp_path: Path) -> ForeignJob:
    """A job whose pipeline has a file and an argument."""
    pipeline, table = tmp_path / "pipe line.py", tmp_path / "table.csv"
    pipeline.write_text("print('hello')\n")
    table.write_bytes(b"\x00\xff")
    return ForeignJob(
        name="nightly",
        pipeline=pipeline,
        args=("--day", "1"),
        files=(table,),
        spark_conf={"spark.sql.shuffle.partitions": "3"},
        executors=5,
        executor=SlotProfile(cores=2, memory_mb=2048),
    )


def parsed(data: bytes) -> dict[str, str]:
    """The settings of a properties file that needs no escapes in its keys."""
    return dict(line.split("=", 1) for line in data.decode().splitlines())


def test_a_kubernetes_submission_is_complete_and_every_jvm_has_the_agent(job: ForeignJob) -> None:
    rendering = render_kubernetes(KubernetesJob(ID, job, CONFIG, TRUST_DOMAIN), Path("/render"))
    conf = parsed(rendering.files["spark.properties"])
    assert conf["spark.master"] == "k8s://https://kube.internal:6443"
    for end in ("driver", "executor"):
        assert f"-javaagent:{PLUGIN_FILE}={IDENTITY_DIRECTORY}" in conf[f"spark.{end}.extraJavaOptions"]
        assert conf[f"spark.kubernetes.{end}.podTemplateFile"] == f"/render/{end}-pod.json"
    assert conf["spark.ssl.rpc.enabled"] == conf["spark.authenticate"] == "true"
    assert conf["spark.ui.enabled"] == "false"
    assert (conf["spark.executor.instances"], conf["spark.executor.cores"], conf["spark.executor.memory"]) == (
        "5",
        "2",
        "2048m",
    )
    assert conf["spark.sql.shuffle.partitions"] == "3"
    assert rendering.arguments == (
        "--properties-file",
        "/render/spark.properties",
        "local:///run/sluice/job/pipe line.py",
        "--day",
        "1",
    )
    assert conf["spark.kubernetes.executor.request.cores"] == "1500m"
    assert "spark.kubernetes.driver.request.cores" not in conf
    assert conf["spark.kubernetes.driver.pod.name"] == f"sluice-{ID}-driver"
    assert conf["spark.kubernetes.executor.podNamePrefix"] == f"sluice-{ID}"
    assert conf["spark.kubernetes.authenticate.driver.serviceAccountName"] == "spark"
    assert conf["spark.kubernetes.authenticate.executor.serviceAccountName"] == "spark-executor"


def test_pod_templates_are_valid_and_confined(job: ForeignJob) -> None:
    rendering = render_kubernetes(KubernetesJob(ID, job, CONFIG, TRUST_DOMAIN), Path("/render"))
    for end, token in (("driver", True), ("executor", False)):
        pod = msgspec.json.decode(rendering.files[f"{end}-pod.json"], type=Pod)
        assert (pod.api_version, pod.kind) == ("v1", "Pod")
        assert pod.spec.automount_service_account_token is token, "only the driver speaks to the API server"
        volumes = {each.name: each for each in pod.spec.volumes}
        (main,) = pod.spec.containers
        assert main.name == end
        assert main.security_context.capabilities.drop == ["ALL"]
        assert main.security_context.run_as_non_root
        assert not main.security_context.allow_privilege_escalation
        assert {mount.name for mount in main.volume_mounts} == volumes.keys()
        assert main.command[:3] == ["sluice", "run", "job-pod"]
        assert main.command[-3:] == ["--ca", "sluice-ca.sluice.svc:8444,8445", "--"]
        memory = volumes["sluice-keys"].empty_dir
        assert memory is not None
        assert memory.medium == "Memory", "a key is never written to a node's disk"
        projected = volumes["sluice-token"].projected
        assert projected is not None
        (source,) = projected.sources
        assert source.service_account_token.audience == f"spiffe://{TRUST_DOMAIN}/ca"
    files = msgspec.json.decode(rendering.files["files.json"], type=ConfigMap)
    assert {name: base64.b64decode(data) for name, data in files.binary_data.items()} == {
        "pipe line.py": b"print('hello')\n",
        "table.csv": b"\x00\xff",
    }


@pytest.mark.parametrize(
    ("change", "match"),
    [
        pytest.param({"api": ""}, "kubernetes.api", id="no-api-server"),
        pytest.param({"api": "http://kube:8080"}, "kubernetes.api", id="plaintext"),
        pytest.param({"image": ""}, "kubernetes.image", id="no-image"),
        pytest.param({"service_account": ""}, "kubernetes.service_account", id="no-account"),
        pytest.param({"executor_service_account": "Not A Name"}, "kubernetes.executor_service", id="no-name"),
        pytest.param({"executor_service_account": "spark"}, "one service account", id="executors-with-rights"),
        pytest.param({"executor_cpu": "a lot"}, "kubernetes.executor_cpu", id="no-amount"),
        pytest.param({"ca": ""}, "kubernetes.ca", id="no-authority"),
        pytest.param({"ca": "sluice-ca"}, "kubernetes.ca", id="no-port"),
        pytest.param({"namespace": "../x"}, "kubernetes.namespace", id="no-namespace"),
    ],
)
def test_an_incomplete_or_unsafe_kubernetes_configuration_is_refused(
    job: ForeignJob, change: dict[str, str], match: str
) -> None:
    config = msgspec.structs.replace(CONFIG, **change)
    with pytest.raises(SparkError, match=match):
        render_kubernetes(KubernetesJob(ID, job, config, TRUST_DOMAIN), Path("/render"))


@pytest.mark.parametrize(
    "key",
    ["spark.driver.extraJavaOptions", "spark.ssl.rpc.enabled", "spark.kubernetes.driver.secrets.x", "spark.master"],
)
def test_reserved_settings_are_refused_on_kubernetes_and_yarn_too(job: ForeignJob, key: str) -> None:
    forbidden = ForeignJob(name=job.name, pipeline=job.pipeline, spark_conf={key: "x"})
    with pytest.raises(ForbiddenSparkConf, match=key):
        render_kubernetes(KubernetesJob(ID, forbidden, CONFIG, TRUST_DOMAIN), Path("/render"))
    with pytest.raises(ForbiddenSparkConf, match=key):
        render_yarn(forbidden, YarnConfig(identity="/etc/sluice/identity"), Path("/p.jar"), Path("/render"))


def test_files_too_large_for_a_kubernetes_object_are_refused(job: ForeignJob, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"x" * (700 << 10))
    with pytest.raises(SparkError, match="900 KiB"):
        render_kubernetes(
            KubernetesJob(ID, ForeignJob("n", job.pipeline, files=(large,)), CONFIG, TRUST_DOMAIN), Path("/render")
        )


def test_a_yarn_submission_carries_the_plugin_and_names_the_identity(job: ForeignJob) -> None:
    rendering = render_yarn(job, YarnConfig(identity="/etc/sluice/identity", queue="etl"), Path("/c/p.jar"), Path("/r"))
    conf = parsed(rendering.files["spark.properties"])
    assert (conf["spark.master"], conf["spark.submit.deployMode"], conf["spark.yarn.queue"]) == (
        "yarn",
        "cluster",
        "etl",
    )
    assert "-javaagent:sluice-spark.jar=/etc/sluice/identity" in conf["spark.executor.extraJavaOptions"]
    plugin, table = conf["spark.yarn.dist.files"].split(",")
    assert (plugin, table) == ("/c/p.jar#sluice-spark.jar", str(job.files[0]))
    with pytest.raises(SparkError, match=r"yarn\.identity"):
        render_yarn(job, YarnConfig(), Path("/c/p.jar"), Path("/r"))


def test_yarn_has_to_be_configured(tmp_path: Path) -> None:
    with pytest.raises(SparkError, match="HADOOP_CONF_DIR is not set"):
        hadoop_configuration({})
    with pytest.raises(SparkError, match=r"no yarn-site\.xml"):
        hadoop_configuration({"HADOOP_CONF_DIR": str(tmp_path)})
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")
    assert hadoop_configuration({"YARN_CONF_DIR": str(tmp_path)}) == tmp_path


def unescape(line: str) -> tuple[str, str]:
    """A line of a properties file, read as ``java.util.Properties`` does."""
    parts: list[list[str]] = [[]]
    index = 0
    while index < len(line):
        character = line[index]
        if character == "\\" and line[index + 1] == "u":
            parts[-1].append(chr(int(line[index + 2 : index + 6], 16)))
            index += 6
        elif character == "\\":
            parts[-1].append(line[index + 1])
            index += 2
        elif character == "=" and len(parts) == 1:
            parts.append([])
            index += 1
        else:
            parts[-1].append(character)
            index += 1
    key, value = ("".join(part).encode("utf-16", "surrogatepass").decode("utf-16") for part in parts)
    return key, value


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_properties_are_read_as_they_were_written(key: str, value: str) -> None:
    data = properties({key: value}).decode("ascii")
    assert data.endswith("\n")
    assert "\n" not in data[:-1]
    assert unescape(data[:-1]) == (key, value)
    assert not data.startswith(("#", "!", " "))
