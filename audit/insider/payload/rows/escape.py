"""Escaping the sandbox: namespaces, mounts, devices, kernel settings, and calls that enabled escapes before.

A call that would change something is made wrong on purpose: the kernel's error tells whether it was forbidden, or only
wrong.
"""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

from ..attempt import Tried, add, attempt, reached, refused
from ..calling import ESCAPE, asking, calling, opening
from ..kernel import call
from ..reading import error_of, names
from ..world import World

NOWHERE = b"/nonexistent-sluice"
"""Calls with it fail, but only after the kernel's permission check."""
_NEW = {"mnt": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000,
        "cgroup": 0x2000000}  # fmt: skip


def _clone(flags: int) -> None:
    """A child that ends at once."""
    pid = call("clone", flags | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _clone3() -> None:
    arguments = (ctypes.c_uint64 * 11)(_NEW["user"], 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
    pid = call("clone3", ctypes.byref(arguments), ctypes.sizeof(arguments))
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


for _number, (_name, _flag) in enumerate(_NEW.items(), 1):
    add(f"ESC-{_number:02}", f"make a {_name} namespace", ESCAPE,
        calling(f"unshare({_name})", lambda flag=_flag: call("unshare", flag)))  # type: ignore[misc]  # fmt: skip
add("ESC-08", "make a process in a new user namespace", ESCAPE,
    calling("clone(CLONE_NEWUSER)", lambda: _clone(_NEW["user"])))  # fmt: skip
add("ESC-09", "make a process in new namespaces by clone3", ESCAPE, calling("clone3(CLONE_NEWUSER)", _clone3))


@attempt("ESC-10", "enter the namespaces of another process", ESCAPE, severity="critical")
def _enter(world: World) -> Tried:
    targets = [*world.of("process of the cluster"), *world.of("process of another job")]
    pids = [str(each.pid) for each in targets] or ["1"]
    errors = []
    for pid in pids[:8]:
        for kind in ("mnt", "net", "user"):
            try:
                descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
            except OSError as error:
                errors.append(error_of(error))
                continue
            if os.fstat(descriptor).st_ino == Path(f"/proc/self/ns/{kind}").stat().st_ino and kind == "user":
                continue
            try:
                call("setns", descriptor, 0)
            except OSError as error:
                errors.append(error_of(error))
            else:
                return reached(f"setns({kind}) of {names(targets)}", "entered")
    return refused(f"setns of {names(targets) or 'process 1'}", ", ".join(sorted(set(errors))))


add(
    "ESC-11",
    "mount a file system",
    ESCAPE,
    asking("mount of a type that does not exist", lambda: call("mount", b"none", b"/proc/self", b"nosuchfs", 0, None)),
)
add("ESC-12", "unmount what hides something", ESCAPE,
    asking("umount2 of what is not mounted", lambda: call("umount2", b"/proc/self/fd", 0)))  # fmt: skip
add("ESC-13", "change the root of the mounts", ESCAPE,
    asking("pivot_root to what is not there", lambda: call("pivot_root", NOWHERE, NOWHERE)))  # fmt: skip
add("ESC-14", "change its root directory", ESCAPE, calling("chroot(/)", lambda: os.chroot("/")))
add("ESC-15", "mount by the new calls", ESCAPE, calling("fsopen(tmpfs)", lambda: os.close(call("fsopen", b"tmpfs", 1))))
add("ESC-16", "copy a tree of mounts", ESCAPE,
    calling("open_tree(OPEN_TREE_CLONE)", lambda: os.close(call("open_tree", -100, b"/", 1 | 0x80000))))  # fmt: skip


def _device_node() -> None:
    path = Path(f"insider-device-{os.getpid()}")
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    try:
        os.close(os.open(path, os.O_RDWR))
    finally:
        path.unlink()


add("ESC-17", "make a device node and open it", ESCAPE, calling("mknod of /dev/null's numbers", _device_node),
    severity="critical")  # fmt: skip
add("ESC-18", "open disks", ESCAPE,
    opening(os.O_RDONLY, "/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/xvda", "/dev/dm-0", "/dev/loop0"),
    severity="critical")  # fmt: skip
add("ESC-19", "open the memory or the ports of the machine", ESCAPE,
    opening(os.O_RDONLY, "/dev/mem", "/dev/kmem", "/dev/port", "/proc/kcore"), severity="critical")  # fmt: skip
add(
    "ESC-20",
    "open devices of the kernel",
    ESCAPE,
    opening(os.O_RDWR, "/dev/kvm", "/dev/net/tun", "/dev/fuse", "/dev/loop-control", "/dev/vhost-net", "/dev/uinput"),
)
add("ESC-21", "read the kernel's log", ESCAPE, opening(os.O_RDONLY, "/dev/kmsg", "/proc/kmsg"), severity="medium")
add(
    "ESC-22",
    "read the kernel's log by its call",
    ESCAPE,
    calling("syslog(SIZE_BUFFER)", lambda: call("syslog", 10, 0, 0)),
    severity="low",
)


add("ESC-27", "set where core dumps go", ESCAPE, opening(os.O_WRONLY, "/proc/sys/kernel/core_pattern"),
    severity="critical")  # fmt: skip
add("ESC-28", "change the kernel's settings", ESCAPE,
    opening(os.O_WRONLY, "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/hostname",
             "/proc/sys/net/ipv4/ip_forward", "/proc/sys/fs/binfmt_misc/register"), severity="critical")  # fmt: skip
add("ESC-29", "reach the magic keys of the kernel", ESCAPE, opening(os.O_WRONLY, "/proc/sysrq-trigger"),
    severity="critical")  # fmt: skip
add("ESC-30", "write into /sys", ESCAPE,
    opening(os.O_WRONLY, "/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled",
             "/sys/power/state", "/sys/fs/cgroup/cgroup.procs"), severity="critical")  # fmt: skip


add(
    "ESC-31",
    "set a program that cgroups start when they are empty",
    ESCAPE,
    opening(os.O_WRONLY, "/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/*/release_agent"),
    severity="critical",
)
add(
    "ESC-32",
    "move itself out of its cgroup",
    ESCAPE,
    opening(os.O_WRONLY, "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/*/cgroup.procs"),
)
add(
    "ESC-33",
    "load programs into the kernel (bpf)",
    ESCAPE,
    asking("bpf(MAP_CREATE) with nothing", lambda: call("bpf", 0, ctypes.create_string_buffer(72), 72)),
)
add(
    "ESC-34",
    "watch the processor (perf)",
    ESCAPE,
    asking(
        "perf_event_open with nothing", lambda: call("perf_event_open", ctypes.create_string_buffer(128), 0, -1, -1, 0)
    ),
)
add(
    "ESC-35",
    "go round the filter by io_uring",
    ESCAPE,
    asking("io_uring_setup with nothing", lambda: call("io_uring_setup", 0, ctypes.create_string_buffer(128))),
)
add("ESC-36", "keep keys in the kernel", ESCAPE,
    calling("keyctl(GET_KEYRING_ID, session)", lambda: call("keyctl", 0, -3, 1)), severity="low")  # fmt: skip
add("ESC-37", "handle page faults itself", ESCAPE,
    calling("userfaultfd", lambda: os.close(call("userfaultfd", 0x80000))), severity="medium")  # fmt: skip


def _by_handle() -> None:
    handle = ctypes.create_string_buffer((128).to_bytes(4, "little") + bytes(132), 136)
    mount = ctypes.c_int()
    call("name_to_handle_at", -100, b"/", handle, ctypes.byref(mount), 0)
    root = os.open("/", os.O_RDONLY)
    try:
        os.close(call("open_by_handle_at", root, handle, os.O_RDONLY))
    finally:
        os.close(root)


add("ESC-38", "open files by their handles, past every directory", ESCAPE, calling("open_by_handle_at(/)", _by_handle),
    severity="critical")  # fmt: skip


@attempt("ESC-39", "type into somebody's terminal", ESCAPE)
def _terminal(_: World) -> Tried:
    try:
        descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError as error:
        return refused("opened the controlling terminal", error_of(error))
    os.close(descriptor)
    return reached("opened the controlling terminal", "there is one; nothing was typed")


add("ESC-40", "load kernel modules", ESCAPE,
    asking("finit_module of no file", lambda: call("finit_module", -1, b"", 0)), severity="critical")  # fmt: skip
add("ESC-41", "add memory to swap to", ESCAPE, asking("swapon of no file", lambda: call("swapon", b"", 0)))
add("ESC-42", "watch all files of the machine", ESCAPE,
    calling("fanotify_init", lambda: os.close(call("fanotify_init", 0x10, 0))))  # fmt: skip
add("ESC-43", "use the processor's ports", ESCAPE, calling("ioperm(0x80)", lambda: call("ioperm", 0x80, 1, 1)))
add("ESC-44", "account for all processes", ESCAPE, asking("acct(nothing)", lambda: call("acct", NOWHERE)))
