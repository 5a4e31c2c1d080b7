"""The output of scripts/pack-image for saved images that the tests write themselves."""

from __future__ import annotations

import hashlib
import importlib.machinery
import io
import json
import struct
import subprocess
import sys
import tarfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "pack-image"
EPOCH = 1_700_000_000
STATUS = """Package: base-files
Status: install ok installed
Architecture: amd64
Version: 12.4+deb12u5

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
METADATA = "Metadata-Version: 2.1\nName: Jinja2.Like\nVersion: 3.1\n\nName: not this\n"
Layer = Callable[[tarfile.TarFile, int], None]


def add(tar: tarfile.TarFile, name: str, content: str = "", **fields: Any) -> None:
    """Add an entry to ``tar``."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content.encode())
    for field, value in fields.items():
        setattr(entry, field, value)
    tar.addfile(entry, io.BytesIO(content.encode()))


def packed_tar(fill: Callable[[tarfile.TarFile], None]) -> bytes:
    """Return the bytes of a tar file."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        fill(tar)
    return file.getvalue()


def base(tar: tarfile.TarFile, now: int) -> None:
    """Fill a base layer that was built at ``now``."""
    add(tar, "etc/old", "old", mtime=1_000_000_000)
    add(tar, "var/lib/dpkg/status", STATUS, mtime=now, uname=f"root{now}")
    add(tar, "opt/sluice/lib/python3.11/site-packages/gone-1.dist-info/METADATA", METADATA, mtime=now)


def forwards(tar: tarfile.TarFile, now: int) -> None:
    add(tar, "b", "same", mtime=now + 0.5)
    add(tar, "c", type=tarfile.LNKTYPE, linkname="b", mtime=now)
    add(tar, "opt/sluice/app/jinja2.dist-info/METADATA", METADATA, mtime=now)
    add(tar, "opt/sluice/lib/python3.11/site-packages/.wh.gone-1.dist-info", mtime=now)


def backwards(tar: tarfile.TarFile, now: int) -> None:
    """Fill the layer of ``forwards`` in another order, with a hard-linked file's other name first."""
    add(tar, "opt/sluice/lib/python3.11/site-packages/.wh.gone-1.dist-info", mtime=now)
    add(tar, "opt/sluice/app/jinja2.dist-info/METADATA", METADATA, mtime=now)
    add(tar, "./c", "same", mtime=now + 0.5)
    add(tar, "./b", type=tarfile.LNKTYPE, linkname="./c", mtime=now)


def saved(directory: Path, upper: Layer, now: int) -> Path:
    """Write an image file as ``docker save`` does, and return its path."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": str(now),
        "container": f"c{now}",
        "config": {"Hostname": f"h{now}", "Env": ["A=b"], "User": "10001:10001", "Cmd": None, "Image": f"sha256:{now}"},
        "history": [{"created": str(now), "created_by": "RUN with=secret"}],
    }
    manifest = [{"Config": "config.json", "RepoTags": None, "Layers": ["1/layer.tar", "2/layer.tar", "3/layer.tar"]}]

    def fill(tar: tarfile.TarFile) -> None:
        for number, layer in enumerate((base, upper), 1):
            content = packed_tar(lambda tar, layer=layer: layer(tar, now))  # type: ignore[misc]
            entry = tarfile.TarInfo(f"{number}/layer.tar")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        add(tar, "3/layer.tar", type=tarfile.SYMTYPE, linkname="../2/layer.tar")
        add(tar, "config.json", json.dumps(config))
        add(tar, "manifest.json", json.dumps(manifest))

    file = directory / "saved.tar"
    file.write_bytes(packed_tar(fill))
    return file


def pack(directory: Path, upper: Layer, now: int) -> Path:
    """Pack an image and return the directory that contains it."""
    directory.mkdir()
    file = saved(directory, upper, now)
    subprocess.run([sys.executable, SCRIPT, file, directory, str(EPOCH)], check=True, timeout=60, capture_output=True)
    file.unlink()
    return directory


def blobs(directory: Path) -> dict[str, bytes]:
    """Return all files of the archive by name."""
    with tarfile.open(directory / "image.oci.tar") as archive:
        return {each.name: archive.extractfile(each).read() for each in archive.getmembers()}  # type: ignore[union-attr]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return pack(tmp_path / "image", forwards, EPOCH + 100)


def test_the_packed_image_does_not_depend_on_time_order_or_names(image: Path, tmp_path: Path) -> None:
    other = pack(tmp_path / "other", backwards, EPOCH + 5000)
    for name in ("image.oci.tar", "image.json", "image.cdx.json"):
        assert (image / name).read_bytes() == (other / name).read_bytes(), name


def test_different_content_has_a_different_digest(image: Path, tmp_path: Path) -> None:
    def changed(tar: tarfile.TarFile, now: int) -> None:
        forwards(tar, now)
        add(tar, "d", mode=0o755)

    other = pack(tmp_path / "other", changed, EPOCH + 100)
    assert (image / "image.json").read_text() != (other / "image.json").read_text()


def test_every_blob_matches_its_digest_and_is_referenced_by_the_manifest(image: Path) -> None:
    files = blobs(image)
    named = {name.removeprefix("blobs/sha256/"): data for name, data in files.items() if name.startswith("blobs/")}
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in named.items())
    digests = json.loads((image / "image.json").read_text())
    (top,) = json.loads(files["index.json"])["manifests"]
    assert top["digest"] == digests["manifest"]
    manifest = json.loads(named[top["digest"].removeprefix("sha256:")])
    assert manifest["config"]["digest"] == digests["config"]
    config = json.loads(named[digests["config"].removeprefix("sha256:")])
    assert config["rootfs"]["diff_ids"] == [each["digest"] for each in manifest["layers"]]
    assert len(manifest["layers"]) == 3  # the same layer twice is one blob
    assert len(named) == 4


def test_files_keep_their_attributes_and_newer_times_are_clamped(image: Path) -> None:
    files = blobs(image)
    (described,) = json.loads(files["manifest.json"])
    below, above = (io.BytesIO(files[name]) for name in described["Layers"][:2])
    with tarfile.open(fileobj=below) as lower, tarfile.open(fileobj=above) as upper:
        assert lower.getmember("etc/old").mtime == 1_000_000_000
        assert upper.getmember("b").mtime == EPOCH
        assert upper.getmember("c").linkname == "b"
        assert upper.getnames() == sorted(upper.getnames())
        assert {each.uname for each in (*lower.getmembers(), *upper.getmembers())} == {""}


def keystore(order: list[bytes], time: int) -> bytes:
    """Return a certificate keystore in Java's format, as Debian's tool writes it."""
    content = struct.pack(">IiI", 0xFEEDFEED, 2, len(order))
    for name in order:
        content += struct.pack(">iH", 2, len(name)) + name + struct.pack(">qH", time, 5) + b"X.509"
        content += struct.pack(">I", 3 * len(name)) + 3 * name
    return content + hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + content).digest()  # noqa: S324


def test_the_java_keystore_is_made_canonical_and_other_files_are_unchanged() -> None:
    loader = importlib.machinery.SourceFileLoader("pack_image", str(SCRIPT))
    module = types.ModuleType("pack_image")
    loader.exec_module(module)
    made = module.canonical_keystore(keystore([b"debian:b", b"debian:a"], 5), EPOCH)
    assert made == keystore([b"debian:a", b"debian:b"], EPOCH * 1000)
    sound = keystore([b"debian:b", b"debian:a"], 5)
    for other in (b"", b"\xfe\xed\xfe\xed", sound[:-1], sound[:40], sound[:30] + b"x" + sound[31:], b"PKCS12" * 9):
        assert module.canonical_keystore(other, EPOCH) == other


def test_the_image_configuration_contains_nothing_of_the_build(image: Path) -> None:
    config = blobs(image)[json.loads(blobs(image)["manifest.json"])[0]["Config"]]
    assert json.loads(config)["config"] == {"Env": ["A=b"], "User": "10001:10001"}
    assert not {b"secret", b"created", b"Hostname", b"container"} & set(config.replace(b'"', b" ").split())


def test_the_sbom_lists_the_packages_of_the_final_image(image: Path) -> None:
    components = json.loads((image / "image.cdx.json").read_text())["components"]
    assert [each["purl"] for each in components] == [
        "pkg:deb/debian/base-files@12.4%2Bdeb12u5?arch=amd64",
        "pkg:pypi/jinja2-like@3.1",
    ]


def test_a_malformed_saved_image_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "saved.tar"

    def fill(tar: tarfile.TarFile) -> None:
        add(tar, "manifest.json", "[]")

    def dangling(tar: tarfile.TarFile, _now: int) -> None:
        add(tar, "c", type=tarfile.LNKTYPE, linkname="nothing")

    for content in (b"", b"no tar", packed_tar(fill), saved(tmp_path, dangling, 1).read_bytes()):
        broken.write_bytes(content)
        run = subprocess.run(
            [sys.executable, SCRIPT, broken, tmp_path, "1"], check=False, timeout=60, capture_output=True, text=True
        )
        assert run.returncode == 1
        assert "is not packed" in run.stderr
