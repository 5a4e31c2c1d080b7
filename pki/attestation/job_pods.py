"""Pods of jobs that Spark's own manager runs: maps a pod's name to its identity.

No I/O. A pod's name is in the review of its token, and cannot change. Whoever may create pods in a namespace can choose
their names. So a job's id contains a digest of its namespace: no pod of another namespace can get an identity of this
job.
"""

from __future__ import annotations

import hashlib
import re
import secrets

from sluice.pki.spiffe_id import SpiffeId

_NAMESPACE_DIGITS = 16
"""Digits of a job's id that are the digest of its namespace; the others are random."""
_POD = re.compile(r"sluice-(?P<job>[0-9a-f]{32})-(driver|exec-(?P<executor>0|[1-9][0-9]{0,8}))")


def new_pod_job_id(namespace: str) -> str:
    """The id of a new job whose pods are in ``namespace``: 32 hexadecimal digits."""
    return _digest(namespace) + secrets.token_hex((32 - _NAMESPACE_DIGITS) // 2)


def executor_pod_prefix(job_id: str) -> str:
    """What Spark puts ``-exec-`` and the executor's number after (``spark.kubernetes.executor.podNamePrefix``)."""
    return f"sluice-{job_id}"


def driver_pod_name(job_id: str) -> str:
    """The name of the driver's pod (``spark.kubernetes.driver.pod.name``)."""
    return f"sluice-{job_id}-driver"


def job_pod_identity(trust_domain: str, namespace: str, name: str) -> SpiffeId | None:
    """The identity of the pod ``name`` of ``namespace``; None: it belongs to no job of this namespace."""
    found = _POD.fullmatch(name)
    if found is None or not found["job"].startswith(_digest(namespace)):
        return None
    if found["executor"] is None:
        return SpiffeId.driver(trust_domain, found["job"])
    return SpiffeId.executor(trust_domain, found["job"], int(found["executor"]))


def _digest(namespace: str) -> str:
    return hashlib.sha256(f"sluice namespace of a job: {namespace}".encode()).hexdigest()[:_NAMESPACE_DIGITS]
