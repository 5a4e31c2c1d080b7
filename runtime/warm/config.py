"""Settings of the pool of warm JVMs (section ``[warm]`` of ``sluice.toml``)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

MAX_JVMS = 64


class WarmConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """JVMs that are started before a job needs them."""

    jvms: Literal["auto"] | Annotated[int, msgspec.Meta(ge=0, le=MAX_JVMS)] = 0
    """JVMs that may wait on each TaskManager: of the sizes, and as many, as jobs have asked for in the last half hour;
    ``"auto"``: at most 8; 0: none. Each takes one job, and needs some 450 MiB while it waits."""
    fill: Literal["idle", "always"] = "idle"
    """When others take their places: with processor time that nobody else wants, or at once and at the cost of what
    runs: where jobs are to start soon on a machine that is always busy."""
