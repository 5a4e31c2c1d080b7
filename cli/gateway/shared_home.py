"""The home for commands that read or change credentials, updated from the shared store if there is one."""

from __future__ import annotations

from pathlib import Path

from sluice.cli.options import load_configuration
from sluice.core import Home
from sluice.gateway.shared_store import bind, shared_files_in


def gateway_home(path: Path) -> Home:
    """The home at ``path``, with the newest credentials of ``[gateway.shared_store]``.

    Raises:
        SharedStoreError: the database of the shared store cannot be used.
    """
    home, configuration = load_configuration(path, None)
    if configuration.gateway.shared_store is not None:
        bind(home, configuration.gateway.shared_store)
    elif (files := shared_files_in(home.gateway)) is not None:
        files.pull()
    return home
