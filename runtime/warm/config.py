"""Settings of the pool of warm JVMs (section ``[warm]`` of ``sluice.toml``)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

MAX_JVMS = 64


class WarmConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pool of JVMs that are started before a job needs them."""

    jvms: Literal["auto"] | Annotated[int, msgspec.Meta(ge=0, le=MAX_JVMS)] = 0
    """Maximum number of warm JVMs per TaskManager. The number and sizes follow the jobs of the last half hour.
    ``"auto"``: at most 8; 0: none. Each JVM runs one job, and needs about 450 MiB while it waits."""
    fill: Literal["idle", "always"] = "idle"
    """When used JVMs are replaced. ``"idle"``: only with idle CPU time. ``"always"``: at once, at the cost of running
    jobs; for machines that are always busy but must start jobs quickly."""
