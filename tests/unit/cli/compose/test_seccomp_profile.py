"""``seccomp.json``: what it allows beyond the container engine's default, and what neither allows."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from sluice.cli.compose.files import seccomp_profile

ALLOWED = "SCMP_ACT_ALLOW"
CLONE_NEWNET, CLONE_NEWTIME = 0x40000000, 0x80
CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID = 0x10000000, 0x00020000, 0x20000000
CLONE_NEWIPC, CLONE_NEWUTS, CLONE_NEWCGROUP = 0x08000000, 0x04000000, 0x02000000
OF_A_SANDBOX = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP


@pytest.fixture(scope="module")
def profile() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(seccomp_profile())
    return found


def matches(argument: dict[str, Any], value: int) -> bool:
    """Whether ``value`` meets a condition on an argument, as libseccomp evaluates it."""
    if argument["op"] == "SCMP_CMP_MASKED_EQ":
        return bool(value & argument["value"] == argument["valueTwo"])
    assert argument["op"] == "SCMP_CMP_EQ"
    return bool(value == argument["value"])


def action(profile: dict[str, Any], name: str, first: int = 0) -> str:
    """The action for the system call ``name`` with this first argument, on x86_64 without a capability."""
    for rule in profile["syscalls"]:
        assert rule.keys() <= {"comment", "names", "action", "args", "errnoRet", "includes"}
        assert rule.get("includes", {}) in ({}, {"arches": ["amd64"]})
        assert all(each["index"] == 0 for each in rule.get("args", ()))
        if name in rule["names"] and all(matches(each, first) for each in rule.get("args", ())):
            return str(rule["action"])
    return str(profile["defaultAction"])


def test_system_calls_that_are_not_listed_are_refused(profile: dict[str, Any]) -> None:
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert profile["defaultErrnoRet"] == errno.EPERM
    assert [each["architecture"] for each in profile["archMap"]] == ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"]
    assert not any(each["subArchitectures"] for each in profile["archMap"])


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [("clone", OF_A_SANDBOX, CLONE_NEWNET), ("unshare", OF_A_SANDBOX | CLONE_NEWNET, CLONE_NEWTIME)],
)
def test_only_the_namespaces_of_a_sandbox_can_be_created(
    profile: dict[str, Any], name: str, allowed: int, refused: int
) -> None:
    assert action(profile, name, allowed) == ALLOWED
    assert action(profile, name, refused) != ALLOWED
    assert action(profile, name, allowed | refused) != ALLOWED


def test_clone3_is_refused_with_enosys(profile: dict[str, Any]) -> None:
    (rule,) = (each for each in profile["syscalls"] if "clone3" in each["names"])
    assert (rule["action"], rule["errnoRet"]) == ("SCMP_ACT_ERRNO", errno.ENOSYS)


@pytest.mark.parametrize("name", ["mount", "umount2", "pivot_root", "landlock_create_ruleset", "seccomp"])
def test_system_calls_that_set_up_a_sandbox_are_allowed(profile: dict[str, Any], name: str) -> None:
    assert action(profile, name) == ALLOWED


@pytest.mark.parametrize("name", ["setns", "process_vm_readv", "pidfd_getfd", "pidfd_open"])
def test_system_calls_that_serve_the_network_of_a_sandbox_from_outside_are_allowed(
    profile: dict[str, Any], name: str
) -> None:
    assert action(profile, name) == ALLOWED


@pytest.mark.parametrize(
    "name",
    [
        *(
            "sethostname",
            "move_mount",
            "open_tree",
            "fsopen",
            "fsconfig",
            "fsmount",
            "mount_setattr",
            "chroot",
            "bpf",
        ),
        *("ptrace", "process_vm_writev", "kcmp", "perf_event_open", "userfaultfd"),
        *("io_uring_setup", "io_uring_enter", "keyctl", "add_key", "request_key", "init_module", "finit_module"),
        *("kexec_load", "open_by_handle_at", "reboot", "swapon", "syslog", "modify_ldt", "iopl", "ioperm", "quotactl"),
    ],
)
def test_system_calls_that_expose_more_of_the_kernel_are_refused(profile: dict[str, Any], name: str) -> None:
    assert action(profile, name) != ALLOWED


@pytest.mark.parametrize("family", [3, 29, 38, 40, 44])
def test_only_internet_unix_netlink_and_packet_sockets_are_allowed(profile: dict[str, Any], family: int) -> None:
    assert action(profile, "socket", family) != ALLOWED
    assert {each for each in range(64) if action(profile, "socket", each) == ALLOWED} == {1, 2, 10, 16, 17}
