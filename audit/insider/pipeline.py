"""The insider audit's pipeline: a job that tries what a hostile tenant would; ``sluice audit --insider`` submits it.

Its attempts are in the package ``sluice_insider``, which goes with it.
"""

from sluice_insider.main import run  # type: ignore[import-not-found]

run()
