"""The key of a backup with a passphrase: an age file, as others write and read it."""

from __future__ import annotations

import base64

import pyrage
import pytest

from sluice.cli.backup.errors import BackupDamaged
from sluice.cli.backup.passphrase import decrypt_text, encrypt_text

LOW = 4
"""A work factor that costs nothing, and that pyrage refuses on no machine."""
OF_PYRAGE = b"""-----BEGIN AGE ENCRYPTED FILE-----
YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IHNjcnlwdCA3UEZCQW1wN2dTWlJqWDRn
T1k1WmNRIDE3CmMzQ0VHM1hpMkx5cmhrUE45UnRyaS9tcUE5SG9uVU1melFIN1R6
aVdTWVUKLS0tIFZnM3creFdJY0wzY1NJVmhGYWpRN2JSM1NsazdaZ3FhNUFHbnlK
L0FsRkEK8rs2JbwGh44b1QdUVR7YpQUyNZslFA20FoPV2mso75LbXCCVbs7Vdgwz
sHelvp9ox/EWcEBOgfdiNeW5RDfILiitLSDtNfEIyXHA/DMZQNjkkbXXMLKpVa24
iXV/02pV9lJOnWWW6GxSEA==
-----END AGE ENCRYPTED FILE-----
"""


def test_a_key_encrypted_by_pyrage_is_decrypted() -> None:
    text = decrypt_text(OF_PYRAGE, "correct horse battery").decode()
    assert text.startswith("AGE-SECRET-KEY-1")
    assert pyrage.x25519.Identity.from_str(text)


def test_pyrage_decrypts_a_key_that_sluice_encrypted() -> None:
    armoured = encrypt_text(b"a key", "correct horse battery", work_factor=LOW)
    assert pyrage.passphrase.decrypt(armoured, "correct horse battery") == b"a key"
    assert decrypt_text(armoured, "correct horse battery") == b"a key"
    assert encrypt_text(b"a key", "correct horse battery", work_factor=LOW) != armoured


def test_a_changed_character_never_gives_another_key() -> None:
    armoured = encrypt_text(b"a key", "correct horse battery", work_factor=LOW)
    for place in range(len(armoured)):
        for other in (b"A", b"B", b"\n"):
            changed = armoured[:place] + other + armoured[place + 1 :]
            if changed == armoured:
                continue
            try:
                # What base64 does not count (unused bits) changes nothing.
                assert decrypt_text(changed, "correct horse battery") == b"a key"
            except BackupDamaged:
                continue


@pytest.mark.parametrize("bad", [b"", b"\n", b"-----BEGIN AGE ENCRYPTED FILE-----\n", b"\xff" * 100, b"a\nb\nc\n"])
def test_data_that_is_not_an_age_file_is_refused(bad: bytes) -> None:
    with pytest.raises(BackupDamaged):
        decrypt_text(bad, "x")


def test_a_file_with_a_too_large_work_factor_is_refused() -> None:
    armoured = encrypt_text(b"a key", "correct horse battery", work_factor=LOW)
    lines = armoured.decode().splitlines()
    plain = base64.b64decode("".join(lines[1:-1]))
    for factor in (b"21", b"64", b"99"):
        dear = base64.b64encode(plain.replace(b" 4\n", b" " + factor + b"\n")).decode()
        with pytest.raises(BackupDamaged, match="work factor"):
            decrypt_text("\n".join([lines[0], dear, lines[-1], ""]).encode(), "correct horse battery")
