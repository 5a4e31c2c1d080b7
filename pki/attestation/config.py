"""Settings of attestation (tables ``[ca.kubernetes]``, ``[[ca.kubernetes.identities]]``, ``[[ca.kubernetes.jobs]]`` of
``sluice.toml``)."""

from __future__ import annotations

import re
from collections import defaultdict

import msgspec

from sluice.core import SERVICE_ACCOUNT
from sluice.pki.identities import ENROLLABLE

MAX_RULES = 256
ANY = "*"
POD, NAMESPACE = "{pod}", "{namespace}"
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_API = re.compile(r"https://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?")


class PodIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An identity for the pods of one service account. A service account may have several; one without gets nothing."""

    namespace: str
    """Or "*": each namespace; only with a service account that is named, and with a name that begins with
    {namespace} and a dot."""
    service_account: str
    """Or "*": each service account of the namespace."""
    role: str
    """As in the identity: jobmanager, taskmanager, shuffle-manager, shuffle-worker, gateway, auth or zookeeper."""
    name: str = POD
    """Of the process. {pod} and {namespace} stand for those of the pod; a name without {pod} is for one pod at a time,
    and the newest pod has it."""
    dns: tuple[str, ...] = ()
    """Host names in the certificate, with the same placeholders; the process asks for exactly these (--dns)."""
    ips: tuple[str, ...] = ()
    """IP addresses in the certificate, with the same placeholders (--ip)."""
    edge_server: bool = False
    """Whether this is the public certificate of a gateway."""

    def __post_init__(self) -> None:
        if self.namespace != ANY and not _LABEL.fullmatch(self.namespace):
            raise ValueError(f"namespace {self.namespace[:80]!r} is not the name of a namespace, and not '*'")
        if self.service_account != ANY and not _OBJECT.fullmatch(self.service_account):
            raise ValueError(f"service_account {self.service_account[:80]!r} is not the name of one, and not '*'")
        if self.namespace == ANY and self.service_account == ANY:
            raise ValueError("namespace and service_account cannot both be '*': every pod would have the identity")
        if self.role not in ENROLLABLE:
            raise ValueError(f"role {self.role[:80]!r} cannot be had here: one of {', '.join(sorted(ENROLLABLE))}")
        if self.edge_server and (self.role != "gateway" or not (self.dns or self.ips)):
            raise ValueError("edge_server is for role gateway, with the names that clients use in dns or ips")
        if self.namespace == ANY and not self.name.startswith(f"{NAMESPACE}."):
            raise ValueError(f"with namespace '*' name must begin with '{NAMESPACE}.'")
        for text in (self.name, *self.dns):
            if re.search(r"[{}]", text.replace(POD, "").replace(NAMESPACE, "")):
                raise ValueError(f"{text[:80]!r} has a placeholder that is neither {POD} nor {NAMESPACE}")


class PodJobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A namespace in which ``sluice submit --target kubernetes`` runs jobs. Its pods get the identity of their job."""

    namespace: str
    driver: str
    """Service account of drivers, which create the pods of executors."""
    executor: str
    """Service account of executors; it needs no rights."""
    trust_config_map: str = ""
    """ConfigMap of that namespace to write trust anchors and CRLs to, as ca.pem and crl.pem; it must exist. Empty:
    none."""

    def __post_init__(self) -> None:
        if not _LABEL.fullmatch(self.namespace):
            raise ValueError(f"namespace {self.namespace[:80]!r} is not the name of a namespace")
        for account in (self.driver, self.executor):
            if not _OBJECT.fullmatch(account):
                raise ValueError(f"{account[:80]!r} is not the name of a service account")
        if self.driver == self.executor:
            raise ValueError("driver and executor are one service account: executors could then create pods")
        if self.trust_config_map and not _OBJECT.fullmatch(self.trust_config_map):
            raise ValueError(f"trust_config_map {self.trust_config_map[:80]!r} is not the name of a ConfigMap")


class PodAttestationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pods of Kubernetes enrol with their projected service account token, which the API server verifies.

    Its audience is spiffe://<trust domain>/ca. The authority's service account must be allowed to create tokenreviews.
    """

    api: str = ""
    """``https://host:port`` of the API server; empty: that of the cluster in which this pod runs."""
    account: str = SERVICE_ACCOUNT
    """Directory with ``token`` and ``ca.crt`` of the authority's service account."""
    trust_config_map: str = ""
    """ConfigMap of this pod's namespace to write trust anchors and CRLs to, as ca.pem and crl.pem, for pods that enrol;
    it must exist. Empty: none."""
    identities: tuple[PodIdentity, ...] = ()
    jobs: tuple[PodJobs, ...] = ()

    def __post_init__(self) -> None:
        if self.api and not _API.fullmatch(self.api):
            raise ValueError(f"api {self.api[:120]!r} must be a URL as in https://host:6443")
        if self.trust_config_map and not _OBJECT.fullmatch(self.trust_config_map):
            raise ValueError(f"trust_config_map {self.trust_config_map[:80]!r} is not the name of a ConfigMap")
        if len(self.identities) > MAX_RULES:
            raise ValueError(f"there are more than {MAX_RULES} identities")
        self._check_names()
        self._check_jobs()

    def _check_names(self) -> None:
        """Refuse duplicate rules, and rules that could give one identity to pods of two namespaces."""
        places: dict[tuple[str, bool], set[str]] = defaultdict(set)
        for each in self.identities:
            places[each.role, each.edge_server].add(each.namespace)
        for each in self.identities:
            if len(places[each.role, each.edge_server]) > 1 and not each.name.startswith(f"{NAMESPACE}."):
                raise ValueError(
                    f"pods of several namespaces have role {each.role}: the names must begin with '{NAMESPACE}.'"
                )
        said = [
            (each.namespace, each.service_account, each.role, each.name, each.edge_server) for each in self.identities
        ]
        if len(set(said)) < len(said):
            raise ValueError("the same identity is given twice to the same service account")

    def _check_jobs(self) -> None:
        """Refuse duplicate namespaces, and service accounts that run jobs and have another identity."""
        if len(self.jobs) > MAX_RULES:
            raise ValueError(f"there are more than {MAX_RULES} namespaces of jobs")
        if len({each.namespace for each in self.jobs}) < len(self.jobs):
            raise ValueError("the same namespace is given twice in jobs")
        for jobs in self.jobs:
            accounts = {ANY, jobs.driver, jobs.executor}
            for each in self.identities:
                if each.namespace in {ANY, jobs.namespace} and each.service_account in accounts:
                    raise ValueError(
                        f"service account {each.service_account!r} of namespace {jobs.namespace} runs the code of "
                        f"jobs: it cannot have role {each.role}"
                    )
