"""Sluice: PySpark pipelines on a cluster in which every internal connection is mutual TLS.

The Python API (docs/howto/python.md): :class:`Client` submits pipelines and waits for jobs, :func:`spark_session` opens
a Spark Connect session, both through the gateway and with the credentials of the ``sluice`` command. What the names
below need is imported when they are first used.

The parts of this package stand at the top level of the repository; here they are links, so that each module has one
name, ``sluice.…``, in a checkout and in an installed wheel (docs/adr/0090-install-one-package.md).

A process keeps the release that it was started with: when the link to an environment is switched during an upgrade,
modules that it imports later still come from the old environment (docs/howto/upgrade.md).
"""

from os.path import realpath as _realpath
from typing import TYPE_CHECKING

import lazy_loader  # type: ignore[import-untyped]  # the package has no type information

if TYPE_CHECKING:
    from sluice.client.client import Client, Job, JobStatus
    from sluice.client.errors import AwayError, ClientError, JobFailed, RefusedError, UnreachableError, UsageError
    from sluice.client.spark_connect import spark_session
    from sluice.core.errors import SluiceError

__path__[:] = map(_realpath, __path__)

__all__ = [
    "AwayError",
    "Client",
    "ClientError",
    "Job",
    "JobFailed",
    "JobStatus",
    "RefusedError",
    "SluiceError",
    "UnreachableError",
    "UsageError",
    "spark_session",
]

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "client.client": ["Client", "Job", "JobStatus"],
        "client.errors": [
            "AwayError",
            "ClientError",
            "JobFailed",
            "RefusedError",
            "UnreachableError",
            "UsageError",
        ],
        "client.spark_connect": ["spark_session"],
        "core.errors": ["SluiceError"],
    },
)
