"""A job's own rights: privileges, users, limits, sockets of other families, and inherited descriptors."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

from ..attempt import Run, Tried, add, attempt, reached, refused, untried
from ..calling import ABSENT, ESCAPE, FAMILIES, FAMILY, calling
from ..kernel import status
from ..reading import error_of, names
from ..world import World


@attempt("ESC-23", "gain privileges by a setuid program", ESCAPE, severity="high", cwe=(250, 269))
def _setuid(_: World) -> Tried:
    if status("NoNewPrivs") == "1":
        return refused("looked whether new privileges can be gained", "no_new_privs is set")
    programs = [f"/usr/bin/{name}" for name in ("su", "sudo", "mount", "passwd", "newgrp", "fusermount3", "pkexec")]
    found = [path for path in programs if os.path.exists(path) and os.stat(path).st_mode & stat.S_ISUID]  # noqa: PTH110, PTH116
    usable = [path for path in found if not os.statvfs(path).f_flag & os.ST_NOSUID]
    if not found:
        return untried("no setuid program is here, though no_new_privs is not set")
    if not usable:
        return refused(f"looked at {', '.join(found)}", "mounted nosuid")
    return reached("looked whether new privileges can be gained", f"no_new_privs is not set, and {usable[0]} is setuid")


@attempt("ESC-24", "use capabilities", ESCAPE, severity="critical", cwe=(250,))
def _capabilities(_: World) -> Tried:
    held = {name: int(status(name) or "0", 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")}
    told = ", ".join(f"{name}={value:x}" for name, value in held.items())
    return (reached if any(held.values()) else refused)("read /proc/self/status", told)


@attempt("ESC-25", "gain capabilities later, because its bounding set has some", ESCAPE, severity="medium", cwe=(250,))
def _bounding(_: World) -> Tried:
    bounding = int(status("CapBnd") or "0", 16)
    if bounding and status("NoNewPrivs") != "1":
        return reached("read /proc/self/status", f"CapBnd={bounding:x}, and no_new_privs is not set")
    return refused("read /proc/self/status", f"CapBnd={bounding:x}, NoNewPrivs={status('NoNewPrivs')}")


@attempt("ESC-26", "make system calls that no filter looks at", ESCAPE, severity="medium")
def _unfiltered(_: World) -> Tried:
    mode = status("Seccomp")
    return (refused if mode == "2" else reached)("read /proc/self/status", f"Seccomp={mode or 'unknown'}")


add("ESC-45", "become another user", ESCAPE, calling("setresuid(65533)", lambda: os.setresuid(65533, 65533, 65533)),
    severity="critical")  # fmt: skip
add("ESC-46", "choose its groups", ESCAPE, calling("setgroups(65533)", lambda: os.setgroups([65533])))


def _give_away() -> None:
    path = Path(f"insider-file-{os.getpid()}")
    path.touch()
    try:
        os.chown(path, 65533, 65533)
    finally:
        path.unlink()


def _capable_file() -> None:
    path = Path(f"insider-file-{os.getpid()}")
    path.touch()
    try:
        os.setxattr(path, "security.capability", bytes.fromhex("0100000202000000000000000000000000000000"))
    finally:
        path.unlink()


add("ESC-47", "give a file to another user", ESCAPE, calling("chown(65533)", _give_away))
add("ESC-48", "give a file capabilities", ESCAPE, calling("setxattr(security.capability)", _capable_file))
add(
    "ESC-49",
    "be spared when memory runs out",
    ESCAPE,
    calling("oom_score_adj = -500", lambda: Path("/proc/self/oom_score_adj").write_text("-500", encoding="ascii")),
)
add("ESC-50", "come before others on the processor", ESCAPE, calling("nice(-5)", lambda: os.setpriority(0, 0, -5)))
add(
    "ESC-51",
    "take a processor for itself (real time)",
    ESCAPE,
    calling("sched_setscheduler(FIFO)", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))),
)


def _higher_limit() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard + 1))
    except ValueError as error:  # what Python makes of EPERM
        raise PermissionError(errno.EPERM, str(error)) from error


add(
    "ESC-52",
    "raise its limits",
    ESCAPE,
    calling("setrlimit above the hard limit of descriptors", _higher_limit),
    severity="medium",
)


def _opening(done: str, family: int, kind: int, protocol: int) -> Run:
    """An attempt to open a socket; a filter answers like a kernel that lacks the family, so the audit asks outside."""

    def run(world: World) -> Tried:
        known = f"{family}/{kind}/{protocol}" in {each.place for each in world.targets if each.kind == FAMILY}
        try:
            socket.socket(family, kind, protocol).close()
        except OSError as error:
            if error.errno in ABSENT and not known:
                return untried(f"this kernel has no such thing, as far as is known: {error_of(error)}")
            return refused(done, error_of(error))
        return reached(done, "opened, and closed again")

    return run


_FAMILIES = (
    ("ESC-54", "open raw sockets", "socket(AF_INET, SOCK_RAW)", 2, 3, 1),
    ("ESC-55", "listen to whole packets", "socket(AF_PACKET, SOCK_RAW)", 17, 3, 0x0300),
    ("ESC-56", "speak to the hypervisor", "socket(AF_VSOCK)", 40, 1, 0),
    ("ESC-57", "use the kernel's cryptography", "socket(AF_ALG)", 38, 5, 0),
    ("ESC-58", "speak to the kernel by netlink (audit, connector)", "socket(AF_NETLINK, NETLINK_CONNECTOR)", 16, 3, 11),
    ("ESC-59", "use multipath TCP, which port rules do not see", "socket(AF_INET, SOCK_STREAM, MPTCP)", 2, 1, 262),
    ("ESC-60", "use SCTP", "socket(AF_INET, SOCK_STREAM, SCTP)", 2, 1, 132),
    ("ESC-61", "use old protocols of the kernel", "socket(AF_APPLETALK)", 5, 2, 0),
)
for _id, _what, _done, _family, _kind, _protocol in _FAMILIES:
    FAMILIES.append((_family, _kind, _protocol))
    add(_id, _what, ESCAPE, _opening(_done, _family, _kind, _protocol), severity="medium")


@attempt("ESC-62", "use a file that it has inherited", ESCAPE, severity="critical", cwe=(403,))
def _inherited(world: World) -> Tried:
    """A descriptor that the job's parent left open leads out of any sandbox."""
    found = []
    for entry in sorted(os.listdir("/proc/self/fd"), key=int):  # noqa: PTH208  numbers, not files
        try:
            path = os.readlink(f"/proc/self/fd/{entry}")  # noqa: PTH115  text, as the kernel has it
        except OSError:
            continue
        foreign = world.home and path.startswith(world.home) and (world.own or "\0") not in path
        if foreign and not Path(path).name.startswith(("std", "driver.")):
            found.append(path)
    if found:
        return reached("listed its own descriptors", f"open: {', '.join(found[:4])}")
    return refused("listed its own descriptors", "none leads to a directory of the cluster")


@attempt("ESC-63", "find secrets of others in its environment", ESCAPE, severity="critical", cwe=(526,))
def _environment(_: World) -> Tried:
    names_ = sorted(os.environ)
    suspects = [each for each in names_ if each.startswith(("SLUICE_TOKEN", "AWS_", "SSH_", "GITHUB_", "KUBE"))]
    suspects += [each for each in names_ if each.endswith(("_TOKEN", "_PASSWORD", "_API_KEY"))]
    if suspects:
        return reached("read its environment", f"variables: {', '.join(suspects[:8])}")
    return refused("read its environment", f"{len(names_)} variables, none of the cluster's secrets")


@attempt("ESC-64", "make hard links to what others keep", ESCAPE, severity="high", cwe=(62,))
def _hard_link(world: World) -> Tried:
    targets = [*world.of("job key"), *world.of("internal authority's key"), *world.of("marker")]
    if not targets:
        return untried("no file outside is known")
    errors = []
    link = Path(f"insider-link-{os.getpid()}")
    for target in targets:
        try:
            os.link(target.path, link)
        except OSError as error:
            errors.append(error_of(error))
        else:
            link.unlink()
            return reached(f"linked {target}", "the link was made, and removed again")
    return refused(f"linked {names(targets)}", ", ".join(sorted(set(errors))))


def _in_namespace(kind: str) -> Run:
    """Whether this process lives in the namespace in which the audit runs, outside."""

    def run(world: World) -> Tried:
        targets = world.of("namespace", named=kind)
        if not targets:
            return untried("which namespaces the machine has is not known from outside")
        mine = os.stat(f"/proc/self/ns/{kind}").st_ino  # noqa: PTH116  what it leads to
        shared = str(mine) == targets[0].mark
        return (reached if shared else refused)(
            f"looked which {kind} namespace it is in", "the machine's" if shared else "one of its own"
        )

    return run


for _id, _kind_of, _what in (
    ("ESC-66", "pid", "processes"),
    ("ESC-67", "mnt", "mounts"),
    ("ESC-68", "ipc", "shared memory and message queues"),
    ("ESC-69", "uts", "name"),
):
    add(_id, f"live among the {_what} of the machine", ESCAPE, _in_namespace(_kind_of), severity="medium")
