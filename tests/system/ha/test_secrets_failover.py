"""Secrets of two JobManagers, as on two machines, with a real ensemble.

The next leader has the secrets, and needs their key.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from sluice.core.home import Home
from sluice.runtime.jobmanager.secrets import KeyRing, keys_directory
from tests.system.ha.test_zookeeper_failover import leader_seen_by
from tests.system.ha.world import World, eventually

VALUE = b"correct horse battery staple"
GRANT = {"kind": "user", "name": "alice"}


def keys(home: Home) -> Path:
    return keys_directory(home, "")


async def test_the_next_leader_has_all_secrets_and_can_read_them_only_with_the_distributed_key(machines: World) -> None:
    one, other = (machines.masters[name].home for name in ("jm-1", "jm-2"))
    first = KeyRing(keys(one), makes_keys=True).create()
    for name in ("jm-1", "jm-2"):
        machines.start(name)
        await machines.until_up(name)
    status, view = await machines.call("jm-2", "POST", "/v1/secrets/db/versions", data=VALUE)
    assert (status, len(view["versions"])) == (201, 1)
    assert (await machines.call("jm-2", "POST", "/v1/secrets/db/grants", json=GRANT))[0] == 200

    machines.masters["jm-1"].kill()

    async def taken_over() -> bool:
        return (await leader_seen_by(machines, "jm-2")).endswith("/jm-2")

    await eventually(taken_over, "jm-2 leads")
    status, found = await machines.call("jm-2", "GET", "/v1/secrets/db")
    assert (status, found["grants"], found["versions"]) == (200, [GRANT], view["versions"])

    # Without the key it neither wraps anything anew nor makes another key in its place.
    second = KeyRing(keys(other), makes_keys=True).create()
    rotate = "jm-2", "POST", "/v1/secret-keys/rotation"
    status, problem = await machines.call(*rotate, json={"key_id": second})
    assert (status, problem["unreadable"]) == (200, ["db"]), problem
    assert KeyRing(keys(other), makes_keys=False).ids() == (second,)
    shutil.copy2(next(file for file in keys(one).iterdir() if first in file.name), keys(other))
    status, rotated = await machines.call(*rotate, json={"key_id": second})
    assert (status, rotated["rewrapped"], rotated["unreadable"]) == (200, 1, []), rotated
    stored = [path.read_bytes() for path in (machines.tmp / "shared").rglob("*") if path.is_file()]
    assert stored
    assert not [data for data in stored if VALUE in data]
