"""The build context of the containers' image: a Dockerfile, locked requirements, and the wheel of this program.

The wheel is packed again from the installed files that the installer recorded, so that the image contains exactly the
program that wrote the set, without a checkout or a package index.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from importlib.resources import files

from sluice.cli.errors import CommandError

DISTRIBUTION = "sluice"
INSTRUCTIONS = ("Dockerfile", "Dockerfile.envoy", "build.txt", "run.txt")
"""The files beside the wheel; package data, in the folder ``image``."""

_TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # the oldest time of a zip file: equal programs give equal wheels
_OF_THE_INSTALLATION = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")
"""Files that an installer adds to the metadata (PEP 376, PEP 610), and the record, which is written again."""


def image_files() -> dict[str, bytes] | None:
    """The files of the build context, by name; None for an editable installation.

    Raises:
        CommandError: an installed file was changed.
    """
    try:
        installed = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return None
    if _is_editable(installed):
        return None
    folder = files("sluice.cli.compose").joinpath("image")
    instructions = {name: folder.joinpath(name).read_bytes() for name in INSTRUCTIONS}
    return instructions | {f"{DISTRIBUTION}-{installed.version}-py3-none-any.whl": pack_wheel(installed)}


def pack_wheel(installed: Distribution) -> bytes:
    """The wheel of ``installed``: the same files with the same contents, except manual pages.

    Raises:
        CommandError: an installed file was changed.
    """
    contents = {path.as_posix(): _content(path) for path in _of_the_wheel(installed)}
    (metadata,) = {name.partition("/")[0] for name in contents if name.partition("/")[0].endswith(".dist-info")}
    record = io.StringIO()
    writer = csv.writer(record, lineterminator="\n")
    for name, content in sorted(contents.items()):
        writer.writerow((name, f"sha256={_digest(content)}", len(content)))
    writer.writerow((f"{metadata}/RECORD", "", ""))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in (*sorted(contents.items()), (f"{metadata}/RECORD", record.getvalue().encode())):
            entry = zipfile.ZipInfo(name, _TIMESTAMP)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _is_editable(installed: Distribution) -> bool:
    return any(path.name.startswith("__editable__") for path in installed.files or ())


def _of_the_wheel(installed: Distribution) -> Iterator[PackagePath]:
    for path in installed.files or ():
        made_by_installer = path.parts[0].endswith(".dist-info") and path.name in _OF_THE_INSTALLATION
        elsewhere = path.parts[0] in {"..", "bin", "share"} or path.is_absolute()  # the command, manual pages
        if not (made_by_installer or elsewhere or path.suffix == ".pyc"):
            yield path


def _content(path: PackagePath) -> bytes:
    try:
        content = path.read_binary()
    except OSError as error:
        raise CommandError(f"{path.locate()}: {error.strerror or error}", "install sluice again") from error
    if path.hash is not None and path.hash.mode == "sha256" and path.hash.value != _digest(content):
        raise CommandError(f"{path.locate()} is not what was installed", "install sluice again")
    return content


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
