"""The Helm chart: rendered by helm, checked against schemas, and installed into a real API server."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from sluice.cli.options import load_configuration
from sluice.runtime.jobmanager.pods.pod_template import Owner, check_template, pod_of
from tests.kubernetes.api_server import ADMINISTRATOR, ApiServer, api_server, write_kubeconfig

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "sluice"
NAMESPACE = "pipelines"
SCHEMAS = ("1.25.0", "1.30.0", "1.37.0")
OWN_CERTIFICATE = "--set=gateway.certificateSecret=public-tls"
STORE_SECRET = "--set=auth.sharedStore.secret=store"  # noqa: S105  the name of an object
ALTERNATIVES = {
    "defaults": [],
    "restricted": ["--set=isolation.level=none"],
    "no shuffle service": ["--set=shuffle.enabled=false", "--set=jobmanager.replicas=1"],
    "object store": ["--set=ha.url=s3://bucket/sluice", "--set=podDisruptionBudgets=false"],
    "monitored": [
        "--set=serviceMonitor.enabled=true",
        "--set=serviceMonitor.tokenSecret=token",
        "--set=serviceMonitor.caConfigMap=edge",
    ],
    "own certificate": [OWN_CERTIFICATE],
    "monitored with own certificate": [
        OWN_CERTIFICATE,
        "--set=serviceMonitor.enabled=true",
        "--set=serviceMonitor.tokenSecret=token",
    ],
    "pods on demand": ["--set=taskmanager.provider=kubernetes"],
    "restricted pods on demand": ["--set=taskmanager.provider=kubernetes", "--set=isolation.level=none"],
    "jobs of Spark's own manager": [
        '--set-json=sparkJobs=[{"namespace":"spark","driver":"spark","executor":"spark-executor"}]'
    ],
    "several auth services": [
        "--set=auth.replicas=2",
        "--set=auth.sharedStore.hosts={postgres.db.svc:5432}",
        STORE_SECRET,
    ],
    "bounded": [
        '--set-json=gateway.from=[{"ipBlock":{"cidr":"10.0.0.0/8"}}]',
        "--set=networkPolicy.apiServer.cidr=10.1.0.1/32",
    ],
}
Object = dict[str, Any]


@dataclass(frozen=True)
class Helm:
    """The helm program, and the Kubernetes schemas next to it."""

    program: Path

    def run(self, *arguments: str) -> str:
        """Run helm; it must succeed. Returns its standard output."""
        done = subprocess.run([self.program, *arguments], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @functools.cache  # noqa: B019  one for all tests
    def render(self, *values: str, version: str = "1.37.0") -> list[Object]:
        """All objects of the chart, rendered for a cluster of this version."""
        text = self.run(
            "template", "sluice", str(CHART), f"--namespace={NAMESPACE}", f"--kube-version={version}", *values
        )
        return [each for each in yaml.safe_load_all(text) if each]

    def validator(self, version: str, kind: Object) -> jsonschema.Draft7Validator:
        """A validator for objects of a kind; it refuses fields that the version does not know."""
        schemas = self.program.parents[1] / "python" / "kubernetes_validate" / "kubernetes-json-schema"
        group, _, api = kind["apiVersion"].rpartition("/")
        name = "-".join(part for part in (kind["kind"].lower(), group.partition(".")[0], api) if part)
        file = schemas / f"v{version}-local-strict" / f"{name}.json"

        def retrieve(uri: str) -> Resource[Any]:
            return DRAFT7.create_resource(json.loads((file.parent / uri.rpartition("/")[2]).read_text()))

        return jsonschema.Draft7Validator(json.loads(file.read_text()), registry=Registry(retrieve=retrieve))  # type: ignore[call-arg]  # Registry is an attrs class


@pytest.fixture(scope="session")
def helm() -> Helm:
    found = Path(os.environ.get("SLUICE_HELM") or ROOT / "build" / "helm") / "bin" / "helm"
    if not found.is_file():
        pytest.fail(f"there is no {found}: make test-kubernetes fetches it", pytrace=False)
    return Helm(found)


def of(objects: list[Object], kind: str) -> dict[str, Object]:
    """The objects of a kind, by name."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def pods(objects: list[Object]) -> dict[str, Object]:
    """The pod specifications, by component."""
    return {
        name.removeprefix("sluice-"): each["spec"]["template"]["spec"]
        for name, each in of(objects, "StatefulSet").items()
    }


def containers(pod: Object) -> list[Object]:
    """The containers of a pod, including its init containers."""
    return [*pod.get("initContainers", ()), *pod["containers"]]


@pytest.mark.parametrize("values", ALTERNATIVES.values(), ids=ALTERNATIVES)
def test_helm_lint_passes(values: list[str], helm: Helm) -> None:
    helm.run("lint", "--strict", str(CHART), *values)


@pytest.mark.parametrize("version", SCHEMAS)
@pytest.mark.parametrize("values", ALTERNATIVES.values(), ids=ALTERNATIVES)
def test_every_object_matches_the_schema_of_its_kubernetes_version(values: list[str], version: str, helm: Helm) -> None:
    for each in helm.render(*values, version=version):
        if each["kind"] != "ServiceMonitor":
            helm.validator(version, each).validate(each)


@pytest.mark.parametrize("values", ALTERNATIVES.values(), ids=ALTERNATIVES)
def test_the_rendered_sluice_toml_is_a_valid_configuration(values: list[str], helm: Helm, tmp_path: Path) -> None:
    objects = helm.render(*values)
    text = of(objects, "ConfigMap")["sluice-settings"]["data"]["sluice.toml"]
    file = tmp_path / "sluice.toml"
    file.write_text(text)
    _, configuration = load_configuration(tmp_path / "home", file)
    attested = configuration.ca.kubernetes
    assert attested is not None
    given = {(rule.service_account, rule.role, rule.edge_server) for rule in attested.identities}
    accounts = {pod["serviceAccountName"] for pod in pods(objects).values()}
    assert {account for account, *_ in given} >= accounts - {"sluice-ca"}
    assert all(
        rule.namespace == NAMESPACE and rule.role in {rule.service_account[7:], "gateway"}
        for rule in attested.identities
    )
    assert set(configuration.ha.jobmanagers) == {
        f"sluice-jobmanager-{number}"
        for number in range(of(objects, "StatefulSet")["sluice-jobmanager"]["spec"]["replicas"])
    }
    assert tomllib.loads(text)["ha"]["mode"] == "kubernetes"


@pytest.mark.parametrize("values", ALTERNATIVES.values(), ids=ALTERNATIVES)
def test_processes_enrol_for_the_names_that_their_attestation_rules_give(values: list[str], helm: Helm) -> None:
    objects = helm.render(*values)
    settings = tomllib.loads(of(objects, "ConfigMap")["sluice-settings"]["data"]["sluice.toml"])
    for component, pod in pods(objects).items():
        if component == "ca":
            continue
        account = pod["serviceAccountName"]
        rules = [each for each in settings["ca"]["kubernetes"]["identities"] if each["service_account"] == account]
        (arguments,) = (each["args"] for each in pod["containers"] if "run" in each.get("args", ())[:1])
        asked = {each.removeprefix("--dns=") for each in arguments if each.startswith("--dns=")}
        given = {name for rule in rules for name in rule.get("dns", ())}
        instance = f"{account}-0"
        assert {name.replace("$(POD_NAME)", instance) for name in asked} == {
            name.replace("{pod}", instance) for name in given
        }, component
        named = [each.removeprefix("--name=") for each in arguments if each.startswith("--name=")]
        assert [each.replace("$(POD_NAME)", "{pod}") for each in named] in (
            [[rule.get("name", "{pod}")] for rule in rules] if named else [[]]
        )


@pytest.mark.parametrize("values", ALTERNATIVES.values(), ids=ALTERNATIVES)
def test_no_object_contains_a_key_and_keys_of_processes_are_kept_in_memory(values: list[str], helm: Helm) -> None:
    objects = helm.render(*values)
    assert not of(objects, "Secret")
    assert "PRIVATE KEY" not in json.dumps(objects)
    for component, pod in pods(objects).items():
        volumes = {each["name"]: each for each in pod["volumes"]}
        secrets = {name: each["secret"]["secretName"] for name, each in volumes.items() if "secret" in each}
        named = {
            ("gateway", OWN_CERTIFICATE): {"certificate": "public-tls"},
            ("auth", STORE_SECRET): {"store": "store"},
        }
        expected = [secret for (owner, value), secret in named.items() if owner == component and value in values]
        assert secrets == (expected[0] if expected else {}), component
        if component == "ca":
            continue
        assert volumes["keys"]["emptyDir"]["medium"] == "Memory"
        (source,) = volumes["token"]["projected"]["sources"]
        assert source["serviceAccountToken"]["audience"] == "spiffe://sluice.local/ca"
        assert "ln -sfn /run/sluice/keys/pki" in pod["initContainers"][0]["command"][2]


@pytest.mark.parametrize("values", ALTERNATIVES.values(), ids=ALTERNATIVES)
def test_pods_are_restricted_except_for_what_a_sandbox_needs(values: list[str], helm: Helm) -> None:
    """Level "restricted" of https://kubernetes.io/docs/concepts/security/pod-security-standards/."""
    for component, pod in pods(helm.render(*values)).items():
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert pod["securityContext"]["runAsNonRoot"] is True
        allowed = {"configMap", "emptyDir", "projected", "persistentVolumeClaim", "secret", "name"}
        assert all(set(each) <= allowed for each in pod["volumes"])
        for container in containers(pod):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["runAsNonRoot"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert not {"privileged", "runAsUser"} & set(context)
            boxes = container["name"] == "taskmanager" and "--set=isolation.level=none" not in values
            assert context["seccompProfile"]["type"] == ("Localhost" if boxes else "RuntimeDefault")
            assert ("procMount" in context) is boxes, component
            assert {"requests", "limits"} <= set(container["resources"])


@pytest.mark.parametrize("level", ["sandbox", "none"])
def test_pods_on_demand_equal_the_pods_of_the_taskmanager_stateful_set(level: str, helm: Helm) -> None:
    """Except for volume, subdomain, and the checksum of the settings that name the TaskManager provider."""
    isolation = f"--set=isolation.level={level}"
    objects = helm.render("--set=taskmanager.provider=kubernetes", isolation)
    assert "sluice-taskmanager" not in of(objects, "StatefulSet")
    made = json.loads(of(objects, "ConfigMap")["sluice-taskmanager-pods"]["data"]["taskmanager.json"])
    check_template(made)
    usual = of(helm.render(isolation), "StatefulSet")["sluice-taskmanager"]["spec"]["template"]
    assert made["spec"].pop("subdomain") == "sluice-taskmanager"
    assert made["spec"]["volumes"].pop() == {"name": "data", "emptyDir": {"sizeLimit": "20Gi"}}
    for each in (made, usual):
        each["metadata"]["annotations"].pop("sluice/settings")
    assert made == usual
    owner = Owner("apps/v1", "StatefulSet", "sluice-jobmanager", "uid")
    pod = pod_of(made, name="default-tm-1-0123456789", cluster="default", epoch=1, owner=owner)
    for version in SCHEMAS:
        helm.validator(version, pod).validate(pod)


def test_jobmanagers_may_create_pods_only_with_the_kubernetes_provider(helm: Helm) -> None:
    def resources(*values: str) -> set[str]:
        rules = of(helm.render(*values), "Role")["sluice-jobmanager"]["rules"]
        return {each for rule in rules for each in rule["resources"]}

    assert "pods" not in resources()
    assert "pods" in resources("--set=taskmanager.provider=kubernetes")
    assert of(helm.render("--set=taskmanager.provider=kubernetes"), "Role").keys() == of(helm.render(), "Role").keys()


def test_own_certificate_is_mounted_into_the_agent_only(helm: Helm) -> None:
    """A file of root that its group reads; without ``subPath``, which is never updated."""
    objects = helm.render(OWN_CERTIFICATE)
    pod = pods(objects)["gateway"]
    (volume,) = (each for each in pod["volumes"] if "secret" in each)
    assert volume["secret"]["defaultMode"] == 0o400
    mounts = [
        (container["name"], mount)
        for container in containers(pod)
        for mount in container["volumeMounts"]
        if mount["name"] == volume["name"]
    ]
    place = "/run/sluice/certificate"
    assert mounts == [("agent", {"name": volume["name"], "mountPath": place, "readOnly": True})]
    settings = tomllib.loads(of(objects, "ConfigMap")["sluice-settings"]["data"]["sluice.toml"])["gateway"]
    assert (settings["certificate_file"], settings["key_file"]) == (f"{place}/tls.crt", f"{place}/tls.key")


def test_monitoring_trusts_the_authority_of_the_gateways_certificate(helm: Helm) -> None:
    def tls(*values: str) -> Object:
        monitors = of(helm.render(*values, *ALTERNATIVES["monitored with own certificate"][1:]), "ServiceMonitor")
        found: Object = monitors["sluice"]["spec"]["endpoints"][0]["tlsConfig"]
        return found

    assert tls(OWN_CERTIFICATE) == {"serverName": "sluice.example.com"}
    company = tls(OWN_CERTIFICATE, "--set=serviceMonitor.caConfigMap=company")
    assert company["ca"] == {"configMap": {"name": "company", "key": "ca.crt"}}
    with pytest.raises(AssertionError, match="caConfigMap"):
        tls()


def test_only_components_that_call_the_api_server_have_a_token_for_it(helm: Helm) -> None:
    asking = {name for name, pod in pods(helm.render()).items() if pod["automountServiceAccountToken"]}
    assert asking == {"ca", "jobmanager", "shuffle-manager"}


def connections(objects: list[Object]) -> tuple[set[tuple[str, str, int]], set[tuple[str, str, int]]]:
    """The (from, to, port) connections that ingress rules allow, and those that egress rules allow."""
    inward: set[tuple[str, str, int]] = set()
    outward: set[tuple[str, str, int]] = set()
    for policy in of(objects, "NetworkPolicy").values():
        spec = policy["spec"]
        own = spec["podSelector"]["matchLabels"].get("app.kubernetes.io/component")
        for direction, key, found in (("ingress", "from", inward), ("egress", "to", outward)):
            for rule in spec.get(direction) or ():
                for peer in rule.get(key) or ():
                    labels = peer.get("podSelector", {}).get("matchLabels", {})
                    if "app.kubernetes.io/component" not in labels:
                        continue
                    assert labels["app.kubernetes.io/instance"] == "sluice"
                    other = labels["app.kubernetes.io/component"]
                    pair = (other, own) if key == "from" else (own, other)
                    found |= {(*pair, port.get("port", 0)) for port in rule["ports"]}
    return inward, outward


def test_network_policies_match_the_channel_table_in_both_directions(helm: Helm) -> None:
    """edges.yaml is compared with the table itself in tests/unit/deploy."""
    inward, outward = connections(helm.render())
    table = yaml.safe_load((CHART / "edges.yaml").read_text())
    wanted = {(one, each["to"], each["port"]) for each in table["edges"] for one in each["from"]}
    assert inward == wanted
    assert outward == wanted


def test_network_policies_deny_everything_by_default(helm: Helm) -> None:
    objects = helm.render()
    policies = of(objects, "NetworkPolicy")
    deny = policies["sluice-default-deny"]["spec"]
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & set(deny)
    for name, policy in policies.items():
        for rule in policy["spec"].get("egress") or ():
            assert rule["ports"], name
            assert rule["to"], name
        for rule in policy["spec"].get("ingress") or ():
            assert rule["ports"], name
            assert rule.get("from") or (name, rule["ports"][0]["port"]) == ("sluice-gateway", 8443)
    for component, pod in pods(objects).items():
        labels = of(objects, "StatefulSet")[f"sluice-{component}"]["spec"]["template"]["metadata"]["labels"]
        assert deny["podSelector"]["matchLabels"].items() <= labels.items()
        listens = {each["containerPort"] for container in pod["containers"] for each in container.get("ports", ())}
        named = {port for _, to, port in connections(objects)[0] if to == component and port}
        assert listens == named | ({8443} if component == "gateway" else set())


@dataclass(frozen=True)
class Kubectl:
    """Runs kubectl against one API server, as its administrator."""

    program: Path
    server: ApiServer

    def run(self, *arguments: str, content: str = "") -> subprocess.CompletedProcess[str]:
        """Run one command. Objects without a namespace go into the release's namespace."""
        kubeconfig = self.server.audit.parent / "kubectl.json"
        if not kubeconfig.exists():
            write_kubeconfig(kubeconfig, self.server, ADMINISTRATOR, NAMESPACE)
        return subprocess.run(
            [self.program, f"--kubeconfig={kubeconfig}", *arguments],
            input=content, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def may(self, account: str, verb: str, resource: str, name: str = "", *, everywhere: bool = False) -> bool:
        """Whether a service account of the release has this right."""
        target = f"{resource}/{name}" if name else resource
        scope = ["--all-namespaces"] if everywhere else []
        done = self.run(
            "auth", "can-i", verb, target, f"--as=system:serviceaccount:{NAMESPACE}:sluice-{account}", *scope
        )
        assert done.stdout.strip().splitlines()[-1] in {"yes", "no"}, done
        return done.stdout.strip().splitlines()[-1] == "yes"


@pytest.fixture(scope="module")
def kubectl(programs: Path, tmp_path_factory: pytest.TempPathFactory, helm: Helm) -> Iterator[Kubectl]:
    """A kubectl for a server with the release, which is applied after a server-side dry run."""
    with api_server(programs, tmp_path_factory.mktemp("chart")) as server:
        found = Kubectl(programs / "kubectl", server)
        for name in (NAMESPACE, "spark"):
            assert server.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})[0] == 201
        objects = yaml.safe_dump_all(helm.render(version="1.20.2"))
        for options in (["--dry-run=server"], []):
            done = found.run("apply", *options, "-f", "-", content=objects)
            assert done.returncode == 0, done.stderr
            assert not re.search(r"(?i)warning|unknown field", done.stderr.replace("is deprecated", "")), done.stderr
        yield found


def test_the_api_server_accepts_every_object_and_a_second_apply_changes_nothing(kubectl: Kubectl, helm: Helm) -> None:
    objects = helm.render(version="1.20.2")
    again = kubectl.run("apply", "-f", "-", content=yaml.safe_dump_all(objects))
    assert again.returncode == 0, again.stderr
    lines = again.stdout.splitlines()
    assert len(lines) == len(objects)
    # Templates of claims get defaults from the server, by which kubectl always sees a change.
    claims = {
        f"statefulset.apps/{name}"
        for name, each in of(objects, "StatefulSet").items()
        if "volumeClaimTemplates" in each["spec"]
    }
    changed = {line.partition(" ")[0] for line in lines if not line.endswith("unchanged")}
    assert changed <= claims


@pytest.mark.parametrize("values", [each for name, each in ALTERNATIVES.items() if "monitored" not in name])
def test_the_api_server_accepts_the_alternative_values_in_a_dry_run(
    values: list[str], kubectl: Kubectl, helm: Helm
) -> None:
    done = kubectl.run(
        "apply", "--dry-run=server", "-f", "-", content=yaml.safe_dump_all(helm.render(*values, version="1.20.2"))
    )
    assert done.returncode == 0, done.stderr


CALLS = [
    ("ca", "create", "tokenreviews.authentication.k8s.io", ""),
    ("ca", "get", "configmaps", "sluice-trust"),
    ("ca", "update", "configmaps", "sluice-trust"),
    *(
        (account, verb, resource, name)
        for account, lease in (("jobmanager", "sluice-default"), ("shuffle-manager", "sluice-default-shuffle"))
        for verb, resource, name in (
            ("create", "leases.coordination.k8s.io", ""),
            ("get", "leases.coordination.k8s.io", lease),
            ("update", "leases.coordination.k8s.io", lease),
            ("create", "configmaps", ""),
            ("get", "configmaps", f"{lease}-pointers"),
            ("update", "configmaps", f"{lease}-pointers"),
        )
    ),
]
"""Every call that our processes make of the API server."""


@pytest.mark.parametrize(("account", "verb", "resource", "name"), CALLS)
def test_rbac_allows_each_call_that_our_processes_make(
    account: str, verb: str, resource: str, name: str, kubectl: Kubectl
) -> None:
    everywhere = resource.startswith("tokenreviews")
    assert kubectl.may(account, verb, resource, name, everywhere=everywhere)


def permitted(server: ApiServer, account: str, verb: str, resource: str, name: str) -> bool:
    """Whether an account has a right: what `kubectl auth can-i` asks, but for another account."""
    kind, _, group = resource.partition(".")
    kind, _, part = kind.partition("/")
    attributes = {"verb": verb, "resource": kind, "subresource": part, "group": group, "name": name}
    if kind != "tokenreviews":
        attributes["namespace"] = NAMESPACE
    user = f"system:serviceaccount:{NAMESPACE}:{account}"
    review = {"spec": {"user": user, "groups": ["system:authenticated"], "resourceAttributes": attributes}}
    status, answer = server.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert status == 201, answer
    return bool(answer["status"]["allowed"])


def test_rbac_allows_no_other_call(kubectl: Kubectl) -> None:
    """Tried with calls that are similar to the allowed ones, or valuable to an attacker."""
    accounts = ("ca", "auth", "gateway", "jobmanager", "shuffle-manager", "shuffle-worker", "taskmanager", "")
    for account in accounts:
        user = f"sluice-{account}" if account else "default"
        for verb, resource, name in (
            ("get", "secrets", ""),
            ("list", "secrets", ""),
            ("create", "pods", ""),
            ("create", "serviceaccounts/token", ""),
            ("list", "configmaps", ""),
            ("delete", "configmaps", "sluice-trust"),
            ("update", "configmaps", "sluice-settings"),
            ("patch", "configmaps", "sluice-default-pointers"),
            ("delete", "leases.coordination.k8s.io", "sluice-default"),
            ("watch", "leases.coordination.k8s.io", ""),
            ("impersonate", "serviceaccounts", "sluice-ca"),
            ("bind", "roles.rbac.authorization.k8s.io", "sluice-ca"),
        ):
            assert not permitted(kubectl.server, user, verb, resource, name), (account, verb, resource)
        for verb, resource, name in (
            ("create", "tokenreviews.authentication.k8s.io", ""),
            ("get", "configmaps", "sluice-trust"),
            ("update", "configmaps", "sluice-trust"),
            ("create", "configmaps", ""),
            ("update", "configmaps", "sluice-default-pointers"),
            ("update", "configmaps", "sluice-default-shuffle-pointers"),
            ("update", "leases.coordination.k8s.io", "sluice-default"),
            ("update", "leases.coordination.k8s.io", "sluice-default-shuffle"),
        ):
            allowed = permitted(kubectl.server, user, verb, resource, name)
            assert allowed is ((account, verb, resource, name) in CALLS), (account, verb, resource, name)
