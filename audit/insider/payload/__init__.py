"""The hostile pipeline: attempts of a tenant's code from inside its own job.

It goes to the cluster as one package. It imports only the standard library and PySpark, and uses relative imports: on
the cluster the package is called ``sluice_insider``, and Sluice may be absent.
"""

from .attempt import ATTEMPTS as ATTEMPTS, Attempt as Attempt, Group as Group, Outcome as Outcome, Place as Place
from .calling import (
    ABSENT as ABSENT,
    FAMILIES as FAMILIES,
    FAMILY as FAMILY,
    KERNEL_PATH as KERNEL_PATH,
    KERNEL_PATHS as KERNEL_PATHS,
)
from .leaving import GREETING as GREETING, OUTLET as OUTLET
from .main import MARK as MARK
from .rows import load as load
from .world import PATTERNS as PATTERNS, TARGETS as TARGETS, Target as Target, World as World, encode as encode
