"""``python -m sluice.runtime.spark.training``: make the archive of Spark's classes, and print where it is.

``--background``: give way to everything else, and do nothing where memory is short. ``--shared-network``: rehearse in
this machine's network; for the building of images, where nobody else is and no other can be made.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

import psutil

from sluice.core import SluiceError
from sluice.runtime.node import to_background
from sluice.runtime.spark.errors import ClassArchiveFailed
from sluice.runtime.spark.training.archive import make_class_archive

_LOG = logging.getLogger(__name__)

NICENESS = 19
BACKGROUND_MEMORY_BYTES = 3 << 30
"""A rehearsal has two JVMs, of 768 MB of heap each."""


def give_way() -> None:
    """Run only while nobody else wants to: processor and disk."""
    os.nice(NICENESS)
    to_background(os.getpid())
    if psutil.LINUX:
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


def main(argv: Sequence[str] | None = None) -> int:
    """Make it."""
    parser = argparse.ArgumentParser(prog="python -m sluice.runtime.spark.training", description=__doc__)
    parser.add_argument("--background", action="store_true", help="give way to everything else")
    parser.add_argument("--shared-network", action="store_true", help="rehearse in this machine's network")
    options = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        if options.background:
            give_way()
            if (left := psutil.virtual_memory().available) < BACKGROUND_MEMORY_BYTES:
                raise ClassArchiveFailed(f"{left >> 20} MB of memory are left, not {BACKGROUND_MEMORY_BYTES >> 20}")
        sys.stdout.write(f"{make_class_archive(own_network=not options.shared_network)}\n")
    except SluiceError as error:
        _LOG.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
