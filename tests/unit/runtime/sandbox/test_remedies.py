"""The advice given where no sandbox can be created."""

from __future__ import annotations

import pytest

from sluice.runtime.sandbox.remedies import WITHOUT, Restrictions, remedy

NO_PROC = "bwrap: Can't mount proc on /newroot/proc: Operation not permitted"
NO_NAMESPACE = "bwrap: No permissions to create new namespace"


@pytest.mark.parametrize(
    ("complaint", "found", "advice"),
    [
        (
            "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
            Restrictions(container=True),
            "all of /proc",
        ),
        (NO_NAMESPACE, Restrictions(container=True), "compose/seccomp.json"),
        (NO_NAMESPACE, Restrictions(container=True, none_left=True), "user.max_user_namespaces=15000"),
        (NO_NAMESPACE, Restrictions(no_unprivileged=True), "kernel.unprivileged_userns_clone=1"),
        ("bwrap: setting up uid map: Permission denied", Restrictions(apparmor=True), "AppArmor profile"),
        (NO_NAMESPACE, Restrictions(), "a kernel with user namespaces"),
        ("bwrap: Unknown option --disable-userns", Restrictions(), "bubblewrap 0.8 or newer"),
        ("[Errno 13] Permission denied: '/root/venv/bin/python'", Restrictions(container=True), "not below /root"),
    ],
)
def test_the_remedy_names_the_likeliest_cause_in_one_line(complaint: str, found: Restrictions, advice: str) -> None:
    told = remedy(complaint, found)
    assert advice in told
    assert told.endswith(WITHOUT)
    assert "\n" not in told
