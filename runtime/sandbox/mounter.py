"""The program that moves mounts into a running box, see :mod:`sluice.runtime.sandbox.late_mounts`.

It runs as root as ``python -I -S mounter.py``, outside of any box, and exits at once. Its standard input is a JSON
array: the pid of a process in the box, the id map, the directories. With pid 0 it only tests what works without a box.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys

OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
"""System call numbers, the same on x86_64 and aarch64."""
AT_FDCWD, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH = -100, 0x100, 0x1000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, MOVE_MOUNT_F_EMPTY_PATH = 1, 0o2000000, 4
MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_IDMAP = 0x2, 0x4, 0x100000
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000

LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Create the mounts outside, then enter the box's mount namespace and attach them there."""
    pid, mapping, paths = json.load(sys.stdin)
    users = _user_namespace(mapping)
    trees = [(path, _tree(path, users)) for path in paths]
    if pid == 0:
        return
    box = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    if LIBC.setns(box, CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    for path, tree in trees:
        _call(MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(path), MOVE_MOUNT_F_EMPTY_PATH)


def _tree(path: str, users: int) -> int:
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW
    tree = _call(OPEN_TREE, AT_FDCWD, os.fsencode(path), flags)
    wanted = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_IDMAP
    attributes = struct.pack("=QQQQ", wanted, 0, 0, users)
    _call(MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attributes, ctypes.c_size_t(len(attributes)))
    return tree


def _user_namespace(mapping: str) -> int:
    """Create a user namespace with the id map ``mapping`` and without processes; return its descriptor."""
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        if LIBC.unshare(CLONE_NEWUSER) == 0:
            os.write(ready[1], b".")
            os.read(done[0], 1)
        os._exit(0)
    os.close(ready[1])
    try:
        if os.read(ready[0], 1) != b".":
            raise OSError("cannot create a user namespace")
        for name in ("uid_map", "gid_map"):
            fd = os.open(f"/proc/{child}/{name}", os.O_WRONLY)
            os.write(fd, mapping.encode())
            os.close(fd)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.write(done[1], b".")
        os.waitpid(child, 0)


def _call(number: int, *arguments: object) -> int:
    result: int = LIBC.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}: {os.strerror(ctypes.get_errno())}")
    return result


if __name__ == "__main__":
    try:
        main()
    except OSError as problem:
        sys.exit(str(problem))
