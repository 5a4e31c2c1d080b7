"""``python -m sluice.runtime.spark.training``: create the archive of Spark's classes, and print its path.

``--background``: run at idle priority, and stop if memory is short. ``--shared-network``: run the rehearsal in this
machine's network, for image builds, which run alone and cannot create a network namespace.
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
"""Memory for a rehearsal, which runs two JVMs with a heap of 768 MB each."""


def lower_priority() -> None:
    """Use the processor and disk only when they are otherwise idle."""
    os.nice(NICENESS)
    to_background(os.getpid())
    if psutil.LINUX:
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


def main(argv: Sequence[str] | None = None) -> int:
    """Create the archive; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sluice.runtime.spark.training", description=__doc__)
    parser.add_argument("--background", action="store_true", help="run at idle priority")
    parser.add_argument("--shared-network", action="store_true", help="run the rehearsal in this machine's network")
    options = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        if options.background:
            lower_priority()
            if (left := psutil.virtual_memory().available) < BACKGROUND_MEMORY_BYTES:
                raise ClassArchiveFailed(f"{left >> 20} MB of memory are free, not {BACKGROUND_MEMORY_BYTES >> 20} MB")
        sys.stdout.write(f"{make_class_archive(own_network=not options.shared_network)}\n")
    except SluiceError as error:
        _LOG.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
