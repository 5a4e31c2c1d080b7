"""This release and earlier releases understand each other's messages and stored records."""

from __future__ import annotations

import msgspec
import pytest

from sluice.runtime.rpc import envelope
from sluice.runtime.shuffle.data_plane import frames
from tests.compat.release import RECORDS, Release, record_type, recorded, remote_methods, this_release
from tests.compat.types import Comparison

RELEASES = recorded()
each_release = pytest.mark.parametrize("release", list(RELEASES.values()), ids=list(RELEASES))


@pytest.fixture(scope="module")
def now() -> Release:
    return this_release()


def test_releases_are_recorded() -> None:
    assert RELEASES


@each_release
def test_the_wire_formats_of_an_earlier_release_are_still_spoken(release: Release, now: Release) -> None:
    assert envelope.OLDEST_VERSION <= release.rpc_version <= envelope.PROTOCOL_VERSION
    assert release.shuffle_version == frames.VERSION
    comparison = Comparison(release.structs, now.structs)
    assert list(comparison.breaks("envelope", release.envelopes, now.envelopes)) == []


@each_release
def test_the_remote_methods_of_an_earlier_release_are_compatible_in_both_directions(
    release: Release, now: Release
) -> None:
    comparison = Comparison(release.structs, now.structs)
    broken = sorted(set(release.methods) - set(now.methods))
    for label, old in release.methods.items():
        if label in broken:
            continue
        new = now.methods[label]
        broken += [
            f"{label}: {rule} has changed" for rule in ("oneway", "own_job", "unfenced") if old[rule] != new[rule]
        ]
        if not set(old["allow"]) <= set(new["allow"]):
            broken.append(f"{label}: {sorted(set(old['allow']) - set(new['allow']))} may not call any more")
        known, added = new["parameters"][: len(old["parameters"])], new["parameters"][len(old["parameters"]) :]
        if len(known) < len(old["parameters"]):
            broken.append(f"{label}: a parameter is gone")
        for before, after in zip(old["parameters"], known, strict=False):
            broken += comparison.breaks(f"{label}({before['name']})", before["type"], after["type"])
        broken += [f"{label}({each['name']}): is new, and not UNSET" for each in added if not each["unset"]]
        broken += comparison.breaks(f"{label} ->", old["result"], new["result"])
    assert broken == []


@each_release
def test_the_error_types_of_an_earlier_release_still_exist(release: Release, now: Release) -> None:
    assert set(release.errors) <= set(now.errors)


@each_release
def test_the_stored_records_of_an_earlier_release_are_compatible_in_both_directions(
    release: Release, now: Release
) -> None:
    comparison = Comparison(release.structs, now.structs)
    broken = sorted(set(release.records) - set(now.records))
    for name in set(release.records) & set(now.records):
        broken += comparison.breaks(name, release.records[name]["type"], now.records[name]["type"])
    assert broken == []


@each_release
def test_the_recorded_samples_of_an_earlier_release_still_decode(release: Release) -> None:
    """The decoders themselves are used: they check constraints that the recorded descriptions lack."""
    for label, _, method in remote_methods():
        if label in release.methods:
            sample = bytes.fromhex(release.methods[label]["sample"])
            given = method.decode_arguments(sample)
            assert method.decode_arguments(method.encode_arguments(given)) == given
    for name, each in release.records.items():
        record = msgspec.json.decode(each["sample"], type=record_type(name))
        assert msgspec.json.decode(msgspec.json.encode(record), type=record_type(name)) == record


def test_every_record_has_a_type() -> None:
    assert all(record_type(name) for name in RECORDS)
