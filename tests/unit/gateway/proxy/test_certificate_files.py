"""Which certificates of another authority are given to Envoy, and which never are."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from sluice.core.errors import SluiceError
from sluice.core.files import write_public, write_secret
from sluice.core.metrics import REGISTRY
from sluice.gateway.config import GatewayConfig
from sluice.gateway.proxy.certificate_files import (
    MAX_CERTIFICATES,
    MAX_CHAIN_BYTES,
    MAX_KEY_BYTES,
    CertificateFiles,
)
from sluice.pki.authorities import to_pem
from tests.public_authority import DAY, Issued, PublicAuthority

NOW = dt.datetime(2027, 1, 1, tzinfo=dt.UTC)
NAME = "sluice.example.com"


@pytest.fixture(scope="module")
def authority() -> PublicAuthority:
    return PublicAuthority(NOW - DAY)


@pytest.fixture
def issued(authority: PublicAuthority) -> Issued:
    return authority.issue(NAME)


def files_of(issued: Issued, directory: Path, *names: str) -> CertificateFiles:
    return CertificateFiles(*issued.write(directory), names or (NAME,))


def refusal(files: CertificateFiles, now: dt.datetime = NOW) -> str:
    """Return the error message for files that are refused; check that nothing is given to Envoy."""
    before = files.used
    with pytest.raises(SluiceError) as caught:
        files.update(now)
    assert files.used is before
    return str(caught.value)


def test_the_chain_and_key_are_given_to_envoy_together_and_only_once(issued: Issued, tmp_path: Path) -> None:
    files = files_of(issued, tmp_path)
    given = files.update(NOW)
    assert given is not None
    assert given.leaf == issued.leaf
    (secret,) = given.secrets.values()
    assert secret.name == "edge-file"
    assert secret.tls_certificate.certificate_chain.inline_bytes == issued.chain_pem
    assert secret.tls_certificate.private_key.inline_bytes == issued.key_pem
    assert files.update(NOW) is None
    end = issued.leaf.not_valid_after_utc.timestamp()
    shown = {"file": str(tmp_path / "fullchain.pem")}
    assert REGISTRY.get_sample_value("sluice_certificate_file_not_after_seconds", shown) == end


def test_no_certificate_files_are_watched_without_the_setting() -> None:
    assert CertificateFiles.of(GatewayConfig()) is None


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(lambda: ec.generate_private_key(ec.SECP384R1()), id="P-384"),
        pytest.param(lambda: rsa.generate_private_key(65537, 2048), id="RSA of 2048 bits"),
    ],
)
def test_other_supported_kinds_of_keys_are_accepted(
    authority: PublicAuthority, tmp_path: Path, key: Callable[[], rsa.RSAPrivateKey]
) -> None:
    assert files_of(authority.issue(NAME, key=key()), tmp_path).update(NOW) is not None


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(lambda: ec.generate_private_key(ec.SECP521R1()), id="P-521"),
        pytest.param(lambda: ec.generate_private_key(ec.SECP256K1()), id="secp256k1"),
        pytest.param(ed25519.Ed25519PrivateKey.generate, id="Ed25519"),
        pytest.param(lambda: rsa.generate_private_key(65537, 1024), id="RSA of 1024 bits"),  # noqa: S505  it is refused
    ],
)
def test_weak_and_unusual_keys_are_refused(
    authority: PublicAuthority, tmp_path: Path, key: Callable[[], rsa.RSAPrivateKey]
) -> None:
    assert "of a kind that Envoy or browsers do not accept" in refusal(
        files_of(authority.issue(NAME, key=key()), tmp_path)
    )


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("*.example.com",), (NAME,)),
        (("SLUICE.example.COM", "b.test"), ("sluice.Example.com", "b.test")),
    ],
)
def test_server_names_match_certificate_names_as_in_browsers(
    authority: PublicAuthority, tmp_path: Path, names: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    assert files_of(authority.issue(*names), tmp_path, *wanted).update(NOW) is not None


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("other.example.com",), (NAME,)),
        (("*.example.com",), ("a.b.example.com",)),
        (("*.example.com",), ("example.com",)),
        (("s*.example.com",), (NAME,)),
        (("*.com",), ("example.com",)),
        ((NAME,), (NAME, "localhost")),
        ((), (NAME,)),
    ],
)
def test_a_certificate_that_lacks_a_server_name_is_refused(
    authority: PublicAuthority, tmp_path: Path, names: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    told = refusal(files_of(authority.issue(*names), tmp_path, *wanted))
    assert "gateway.server_names" in told


def test_certificate_names_cannot_inject_lines_into_the_log(authority: PublicAuthority, tmp_path: Path) -> None:
    hostile = authority.issue("evil\nINFO all is well\x1b[2J")
    told = refusal(files_of(hostile, tmp_path)), refusal(files_of(hostile, tmp_path), NOW + 400 * DAY)
    assert all("all is well" in each and each.isprintable() for each in told)


def test_key_of_another_certificate_is_refused(authority: PublicAuthority, issued: Issued, tmp_path: Path) -> None:
    files = files_of(issued, tmp_path)
    write_secret(tmp_path / "privkey.pem", authority.issue(NAME).key_pem)
    assert "is not the key of" in refusal(files)


def test_chain_out_of_order_is_refused(authority: PublicAuthority, issued: Issued, tmp_path: Path) -> None:
    files = files_of(issued, tmp_path)
    write_public(tmp_path / "fullchain.pem", to_pem(authority.intermediate, issued.leaf))
    assert "is not the key of" in refusal(files)
    write_public(tmp_path / "fullchain.pem", to_pem(issued.leaf, authority.root, authority.intermediate))
    assert "which follows it" in refusal(files)
    write_public(tmp_path / "fullchain.pem", to_pem(issued.leaf, authority.intermediate, authority.root))
    assert files.update(NOW) is not None


def test_certificate_that_has_expired_is_refused(issued: Issued, tmp_path: Path) -> None:
    files = files_of(issued, tmp_path)
    assert "expired at" in refusal(files, NOW + 400 * DAY)


def test_certificate_is_used_as_soon_as_it_is_valid(authority: PublicAuthority, tmp_path: Path) -> None:
    files = files_of(authority.issue(NAME, begin=NOW + DAY), tmp_path)
    assert "not valid before" in refusal(files)
    assert files.update(NOW) is None
    assert files.update(NOW + DAY) is not None


def test_a_certificate_with_unsuitable_usages_or_must_staple_is_refused(
    authority: PublicAuthority, tmp_path: Path
) -> None:
    clients = authority.issue(NAME, usages=[ExtendedKeyUsageOID.CLIENT_AUTH])
    assert "serverAuth" in refusal(files_of(clients, tmp_path / "clients"))
    assert files_of(authority.issue(NAME, usages=()), tmp_path / "no usages").update(NOW) is not None
    signing = x509.KeyUsage(
        digital_signature=False,
        key_cert_sign=True,
        **dict.fromkeys(
            (
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "crl_sign",
                "encipher_only",
                "decipher_only",
            ),
            False,
        ),
    )
    assert "digitalSignature" in refusal(files_of(authority.issue(NAME, more=[signing]), tmp_path / "signing"))
    stapled = x509.TLSFeature([x509.TLSFeatureType.status_request])
    assert "must-staple" in refusal(files_of(authority.issue(NAME, more=[stapled]), tmp_path / "stapled"))


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660, 0o644, 0o601])
def test_key_that_others_can_read_is_refused(issued: Issued, tmp_path: Path, mode: int) -> None:
    files = files_of(issued, tmp_path)
    key = tmp_path / "privkey.pem"
    key.chmod(mode)
    if os.geteuid() == 0:
        os.chown(key, 12345, -1)
    assert "others can read this secret" in refusal(files)


def test_a_missing_or_special_file_or_directory_is_refused_without_blocking(issued: Issued, tmp_path: Path) -> None:
    for number, name in enumerate(("fullchain.pem", "privkey.pem")):
        directory = tmp_path / str(number)
        files = files_of(issued, directory)
        (directory / name).unlink()
        assert "no such file" in refusal(files).lower()
        os.mkfifo(directory / name, 0o600)
        assert "special file" in refusal(files)
        (directory / name).unlink()
        (directory / name).mkdir(mode=0o700)
        assert "directory" in refusal(files)
        assert files.update(NOW) is None, "it is told once"


@pytest.mark.parametrize(("name", "limit"), [("fullchain.pem", MAX_CHAIN_BYTES), ("privkey.pem", MAX_KEY_BYTES)])
def test_huge_file_is_refused(issued: Issued, tmp_path: Path, name: str, limit: int) -> None:
    files = files_of(issued, tmp_path)
    with (tmp_path / name).open("r+b") as file:
        file.truncate(1 << 40)
    assert f"larger than {limit} bytes" in refusal(files)


def test_a_malformed_chain_or_key_file_is_refused(authority: PublicAuthority, issued: Issued, tmp_path: Path) -> None:
    files = files_of(issued, tmp_path)
    chain, key = tmp_path / "fullchain.pem", tmp_path / "privkey.pem"
    for damaged in (b"", b"\x00\xff" * 100, issued.key_pem):
        write_public(chain, damaged)
        assert "holds no readable PEM certificate" in refusal(files)
    write_public(chain, issued.chain_pem[:-40])
    assert "cut off" in refusal(files)
    write_public(chain, issued.chain_pem + to_pem(authority.root) * MAX_CERTIFICATES)
    assert "more than" in refusal(files)
    write_public(chain, issued.chain_pem)
    for damaged in (b"", b"nothing", issued.chain_pem):
        write_secret(key, damaged)
        assert "not a readable PEM private key" in refusal(files)
    passphrase = serialization.BestAvailableEncryption(b"secret")
    write_secret(
        key, issued.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, passphrase)
    )
    assert "is encrypted" in refusal(files)


def test_a_key_in_the_chain_file_is_not_passed_to_envoy(issued: Issued, tmp_path: Path) -> None:
    files = files_of(issued, tmp_path)
    write_public(tmp_path / "fullchain.pem", issued.key_pem + b"a comment\n" + issued.chain_pem)
    given = files.update(NOW)
    assert given is not None
    (secret,) = given.secrets.values()
    assert secret.tls_certificate.certificate_chain.inline_bytes == issued.chain_pem


def test_neither_refusals_nor_repr_reveal_the_key(issued: Issued, tmp_path: Path) -> None:
    files = files_of(issued, tmp_path)
    write_secret(tmp_path / "privkey.pem", issued.key_pem[:-60])
    told = refusal(files)
    assert not any(line in told for line in issued.key_pem.decode().splitlines())
    given = files_of(issued, tmp_path).update(NOW)
    assert given is not None
    assert issued.key_pem.decode().splitlines()[1] not in repr(given)


class Mounted:
    """A volume as the kubelet writes it: file names link through ``..data`` to one generation's directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.chain, self.key = directory / "tls.crt", directory / "tls.key"
        directory.mkdir()
        for path in (self.chain, self.key):
            path.symlink_to(Path("..data", path.name))

    def swap(self, issued: Issued) -> None:
        """Replace all files at once."""
        generation = self._directory / f"..{issued.leaf.serial_number:x}"
        generation.mkdir()
        write_public(generation / "tls.crt", issued.chain_pem)
        write_secret(generation / "tls.key", issued.key_pem)
        new = self._directory / "..data_tmp"
        new.symlink_to(generation.name)
        new.replace(self._directory / "..data")


def test_secret_mounted_by_kubernetes_is_read_again_after_a_swap(authority: PublicAuthority, tmp_path: Path) -> None:
    mounted = Mounted(tmp_path / "mounted")
    files = CertificateFiles(mounted.chain, mounted.key, (NAME,))
    for _ in range(3):
        issued = authority.issue(NAME)
        mounted.swap(issued)
        given = files.update(NOW)
        assert given is not None
        assert given.leaf == issued.leaf
        assert files.update(NOW) is None


def test_swap_between_reading_chain_and_key_gives_one_generation(authority: PublicAuthority, tmp_path: Path) -> None:
    mounted = Mounted(tmp_path / "mounted")
    old, new = authority.issue(NAME), authority.issue(NAME)
    mounted.swap(old)

    class SwappedMeanwhile(type(mounted.key)):  # type: ignore[misc]
        """The path of the key; the volume is swapped just before it is opened."""

        def __fspath__(self) -> str:
            if not (mounted.chain.parent / f"..{new.leaf.serial_number:x}").exists():
                mounted.swap(new)
            return str(super().__fspath__())

    files = CertificateFiles(mounted.chain, mounted.key, (NAME,))
    files._key_path = SwappedMeanwhile(mounted.key)
    given = files.update(NOW)
    assert given is not None
    assert given.leaf == new.leaf
    assert given.key.private_numbers() == new.key.private_numbers()  # type: ignore[union-attr]


def test_the_last_good_certificate_stays_in_use_until_a_good_one_replaces_it(
    authority: PublicAuthority, tmp_path: Path
) -> None:
    files = files_of(authority.issue(NAME), tmp_path)
    first = files.update(NOW)
    authority.issue("other.test").write(tmp_path)
    refusal(files)
    assert files.used is first
    next_one = authority.issue(NAME)
    next_one.write(tmp_path)
    given = files.update(NOW)
    assert given is not None
    assert given.leaf == next_one.leaf


def test_the_expiry_warning_comes_once_a_day_near_the_end_of_the_lifetime(
    authority: PublicAuthority, tmp_path: Path
) -> None:
    files = files_of(authority.issue(NAME, begin=NOW, lifetime=90 * DAY), tmp_path)
    assert not files.expiry_warning(NOW)
    files.update(NOW)
    assert not files.expiry_warning(NOW + 75 * DAY)
    assert "expires at" in files.expiry_warning(NOW + 76 * DAY)
    assert not files.expiry_warning(NOW + 76.9 * DAY)
    assert "expires at" in files.expiry_warning(NOW + 77 * DAY)
    assert "expired at" in files.expiry_warning(NOW + 91 * DAY)
    authority.issue(NAME, begin=NOW + 91 * DAY, lifetime=6 * DAY).write(tmp_path)
    files.update(NOW + 91 * DAY)
    assert not files.expiry_warning(NOW + 95 * DAY), "a short lifetime is announced late"
    assert files.expiry_warning(NOW + 96 * DAY)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"certificate_file": "/a"}, "belong together"),
        (
            {"certificate_file": "a", "key_file": "/b", "server_names": (NAME,)},
            "certificate_file 'a' must be an absolute",
        ),
        ({"certificate_file": "/a", "key_file": "b", "server_names": (NAME,)}, "key_file 'b' must be an absolute"),
        ({"key_file": "a"}, "belong together"),
        ({"certificate_file": "/a", "key_file": "/b", "server_names": ()}, "needs server_names"),
        ({"certificate_file": "/a", "key_file": "/b", "server_names": ("10.0.0.1",)}, "plain DNS names"),
        ({"certificate_file": "/a", "key_file": "/b", "server_names": ("*.example.com",)}, "plain DNS names"),
        ({"certificate_file": "/a", "key_file": "/b", "server_names": ("::1",)}, "plain DNS names"),
        ({"certificate_file": "/a", "key_file": "/b", "server_names": (f"{'a' * 64}.test",)}, "plain DNS names"),
    ],
)
def test_inconsistent_certificate_settings_are_refused(settings: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        GatewayConfig(**settings)  # type: ignore[arg-type]
