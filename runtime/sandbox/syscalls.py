"""System calls that the processes of a job may not make, with their numbers.

The numbers are those of Linux (``arch/x86/entry/syscalls/syscall_64.tbl``, ``include/uapi/asm-generic/unistd.h``); from
424 on they are the same on both architectures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NEWEST_KNOWN = 469
"""``file_setattr`` of Linux 6.17. Newer calls fail with ENOSYS for a job until a maintainer has reviewed them."""

_COMMON: Mapping[str, int] = {
    # io_uring performs operations without system calls, so no filter sees them.
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "statmount": 457,
    "listmount": 458,
    "lsm_get_self_attr": 459,
    "lsm_set_self_attr": 460,
    "lsm_list_modules": 461,
    "open_tree_attr": 467,
}

_X86_64: Mapping[str, int] = {
    # namespaces and mounts
    "unshare": 272,
    "setns": 308,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "chroot": 161,
    # other processes
    "ptrace": 101,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "move_pages": 279,
    "migrate_pages": 256,
    # large subsystems of the kernel, which had most of its vulnerabilities
    "bpf": 321,
    "perf_event_open": 298,
    "userfaultfd": 323,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "fanotify_init": 300,
    "fanotify_mark": 301,
    "lookup_dcookie": 212,
    # access to files by handle, which bypasses directory permissions
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    # the machine as a whole
    "init_module": 175,
    "finit_module": 313,
    "delete_module": 176,
    "kexec_load": 246,
    "kexec_file_load": 320,
    "reboot": 169,
    "swapon": 167,
    "swapoff": 168,
    "acct": 163,
    "quotactl": 179,
    "syslog": 103,
    "sethostname": 170,
    "setdomainname": 171,
    "settimeofday": 164,
    "clock_settime": 227,
    "clock_adjtime": 305,
    "adjtimex": 159,
    "vhangup": 153,
    "nfsservctl": 180,
    # memory that belongs to no process: measuring processes does not count it, and it may outlive them
    "shmget": 29,
    "msgget": 68,
    # obsolete calls
    "uselib": 134,
    "ustat": 136,
    "sysfs": 139,
    "modify_ldt": 154,
    "_sysctl": 156,
    "iopl": 172,
    "ioperm": 173,
    "create_module": 174,
    "get_kernel_syms": 177,
    "query_module": 178,
    "vserver": 236,
}

_AARCH64: Mapping[str, int] = {
    "unshare": 97,
    "setns": 268,
    "mount": 40,
    "umount2": 39,
    "pivot_root": 41,
    "chroot": 51,
    "ptrace": 117,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "move_pages": 239,
    "migrate_pages": 238,
    "bpf": 280,
    "perf_event_open": 241,
    "userfaultfd": 282,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "fanotify_init": 262,
    "fanotify_mark": 263,
    "lookup_dcookie": 18,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "init_module": 105,
    "finit_module": 273,
    "delete_module": 106,
    "kexec_load": 104,
    "kexec_file_load": 294,
    "reboot": 142,
    "swapon": 224,
    "swapoff": 225,
    "acct": 89,
    "quotactl": 60,
    "syslog": 116,
    "sethostname": 161,
    "setdomainname": 162,
    "settimeofday": 170,
    "clock_settime": 112,
    "clock_adjtime": 266,
    "adjtimex": 171,
    "vhangup": 58,
    "shmget": 194,
    "msgget": 186,
    "nfsservctl": 42,
}


REPORTED_CALLS = frozenset(
    {
        *("io_uring_setup", "io_uring_enter", "io_uring_register"),
        *("unshare", "setns"),
        *("pidfd_getfd", "ptrace", "bpf"),
    }
)
"""Denied calls that would let a program leave its private network. There, each attempt is reported."""


@dataclass(frozen=True, slots=True, eq=False)
class Architecture:
    """The system call numbers of one processor architecture."""

    audit: int
    """``AUDIT_ARCH_*`` of ``linux/audit.h``."""
    denied: Mapping[str, int]
    clone: int
    clone3: int
    socket: int
    socketpair: int
    ioctl: int
    personality: int
    connect: int
    listen: int
    sendto: int
    sendmsg: int
    sendmmsg: int
    setsockopt: int
    seccomp: int
    foreign_abi_bit: int = 0
    """The bit that marks numbers of another ABI (x32); 0: there is none."""


ARCHITECTURES: Mapping[str, Architecture] = {
    "x86_64": Architecture(
        0xC000003E,
        {**_X86_64, **_COMMON},
        clone=56,
        clone3=435,
        socket=41,
        socketpair=53,
        ioctl=16,
        personality=135,
        connect=42,
        listen=50,
        sendto=44,
        sendmsg=46,
        sendmmsg=307,
        setsockopt=54,
        seccomp=317,
        foreign_abi_bit=0x40000000,
    ),
    "aarch64": Architecture(
        0xC00000B7,
        {**_AARCH64, **_COMMON},
        clone=220,
        clone3=435,
        socket=198,
        socketpair=199,
        ioctl=29,
        personality=92,
        connect=203,
        listen=201,
        sendto=206,
        sendmsg=211,
        sendmmsg=269,
        setsockopt=208,
        seccomp=277,
    ),
}
"""The supported architectures by the name that ``uname -m`` prints."""
