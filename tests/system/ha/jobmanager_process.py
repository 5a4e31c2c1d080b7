"""A JobManager as a separate process, by default with drivers without Spark.

    python jobmanager_process.py SETTINGS.json

With the setting ``die`` it kills itself before or after the file operation whose audit event and path
match.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
from pathlib import Path

import msgspec

from sluice.core.home import Home
from sluice.pki.config import PkiConfig
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.runtime.config import RuntimeConfig
from sluice.runtime.processes.jobmanager import jobmanager


class Death(msgspec.Struct, frozen=True):
    """Where to die: an audit event of Python, a pattern of its path, before or after, and which match."""

    event: str
    path: str
    before: bool
    nth: int = 1


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the process; ``authorities`` is the home that signs certificates."""

    home: str
    authorities: str
    name: str
    config: RuntimeConfig
    pki: PkiConfig
    die: Death | None = None


def die_at(death: Death) -> None:
    """Kill this process, as ``kill -9`` does, at the instant that ``death`` describes."""
    pattern, left = re.compile(death.path), [death.nth]

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.kill":
            return  # our own
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        if event == death.event and pattern.search(_target(arguments)):
            left[0] -= 1
            if death.before and not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _target(arguments: tuple[object, ...]) -> str:
    """Return the path that the audit event of a rename or removal concerns.

    The product names files relative to open directories.
    """
    # the last path is a rename's target, the last number the descriptor of its directory, or -1
    paths = [os.fsdecode(each) for each in arguments if isinstance(each, str | bytes | os.PathLike)]
    directory = next((each for each in reversed(arguments) if isinstance(each, int)), -1)
    return str(Path(f"/proc/self/fd/{directory}").readlink() / paths[-1]) if directory >= 0 else paths[-1]


async def run(settings: Settings) -> None:
    """Run the JobManager until it is killed or receives SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with jobmanager(
        Home.at(Path(settings.home)),
        settings.config,
        settings.pki,
        settings.name,
        issuer=LocalIssuer(Home.at(Path(settings.authorities)), settings.pki),
    ):
        print("ready", flush=True)  # noqa: T201
        await stopped.wait()


def main() -> None:
    """Entry point."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Settings)
    if settings.die is not None:
        die_at(settings.die)
    asyncio.run(run(settings))


if __name__ == "__main__":
    main()
