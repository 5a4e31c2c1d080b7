"""The settings of a cluster of containers as text: ``sluice.toml`` and ``.env``. Decisions only; no I/O."""

from __future__ import annotations

from sluice.cli.compose.choices import SHUFFLE_MANAGERS, ComposeSet
from sluice.cli.compose.ha_services import REST_HOST, RPC_PORT, ha_settings
from sluice.cli.compose.services import CA_PORT
from sluice.core import url_host

DRIVER_MEMORY_MB = 768
DRIVER_PYTHON_MB = 768
BOX_PROCESSES = 512
"""Processes and threads of one sandbox: a JVM has about a hundred."""
BOX_TMP_MB = 128
BLOB_PORT = 6124
GATEWAY_PORT = 8443
EGRESS_PORT = 8447
SHUFFLE_PORT = 7337
SHUFFLE_DATA_PORT = 7338
CERTIFICATE = "/etc/sluice-certificate"
"""The directory of the gateway's own certificate in ``envoy-agent``; a directory, so that renames replace files."""


def render_environment(chosen: ComposeSet) -> str:
    """``.env``, which compose reads by itself: the settings that differ between machines. No secret."""
    return "\n".join(
        (
            "# Read by compose. Nothing in here is secret.",
            f"COMPOSE_PROJECT_NAME={chosen.name}",
            f"SLUICE_IMAGE={chosen.image}",
            "# The image that runs Envoy: /usr/local/bin/envoy, and `test` for its health check.",
            f"SLUICE_ENVOY_IMAGE={chosen.envoy_image}",
            "# Where the gateway is published. 0.0.0.0: on all addresses of this machine.",
            f"SLUICE_ADDRESS={url_host(chosen.address)}",
            f"SLUICE_PORT={chosen.port}",
            "# AppArmor's profile of TaskManagers. It must allow mounts and user namespaces; docker-default does not.",
            "SLUICE_APPARMOR=unconfined",
            "",
        )
    )


def render_settings(chosen: ComposeSet) -> str:
    """``sluice.toml``, the same in every container."""
    names = ", ".join(f'"{host}"' for host in chosen.server_names)
    return f"""\
# The cluster's settings, mounted read-only into every container. Nothing in here is secret.

[ca]
host = "0.0.0.0"                      # on both internal networks
port = {CA_PORT}
enrolment_port = {CA_PORT + 1}

[jobmanager]
rpc_port = {RPC_PORT}
blob_port = {BLOB_PORT}
rest_host = "{REST_HOST}"  # on the network `gateway`; all JobManagers have that name there
rest_port = 8081
heartbeat_interval = 2.0              # seconds
heartbeat_timeout = 10.0

[taskmanager]
slots = {chosen.slots}
slot_memory_mb = {chosen.slot_memory_mb}
driver_slots = {chosen.driver_slots}                      # drivers at a time, besides the executors in slots

[spark]
driver_memory_mb = {DRIVER_MEMORY_MB}

[isolation]                           # of each process of a job; what they use together the container bounds
level = "sandbox"
max_processes = {BOX_PROCESSES}
tmp_mb = {BOX_TMP_MB}                          # of /tmp, and of /dev/shm
python_worker_memory_mb = {chosen.python_memory_mb}
driver_python_memory_mb = {DRIVER_PYTHON_MB}
{ha_settings(chosen.jobmanagers)}{_shuffle_settings(chosen)}
[egress]                              # where Envoy takes the connections of jobs, on the network `cluster`
host = "0.0.0.0"
port = {EGRESS_PORT}
address = "envoy:{EGRESS_PORT}"

[gateway]
host = "0.0.0.0"
port = {GATEWAY_PORT}
server_names = [{names}]
{_certificate_settings(chosen)}auth_host = "auth"
auth_port = 8082
authorization_timeout = 2.0           # containers share their processors with each other
"""


def _certificate_settings(chosen: ComposeSet) -> str:
    if not chosen.certificate:
        return ""
    return f"""\
certificate_file = "{CERTIFICATE}/fullchain.pem"  # envoy-agent alone reads them, and hands them over to Envoy
key_file = "{CERTIFICATE}/privkey.pem"
"""


def _shuffle_settings(chosen: ComposeSet) -> str:
    if not chosen.shuffle_workers:
        return "\n[shuffle]\nenabled = false\n"
    managers = ", ".join(f'"{name}:{SHUFFLE_PORT}"' for name in SHUFFLE_MANAGERS)
    names = ", ".join(f'"{name}"' for name in SHUFFLE_MANAGERS)
    return f"""
[shuffle]
enabled = true
managers = [{managers}]
manager_names = [{names}]
manager_port = {SHUFFLE_PORT}
worker_port = {SHUFFLE_DATA_PORT}
memory_mb = 256                       # of each worker
"""
