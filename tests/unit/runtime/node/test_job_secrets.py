"""What of a job's secrets is a file, and what is masked in its logs."""

from __future__ import annotations

from sluice.runtime.messages import GivenSecret
from sluice.runtime.node import masker_of, secret_files

OLD, NEW, OTHER = b"correct horse battery", b"staple the horse twice", b"only ever seen by others"


def test_every_version_of_a_secret_is_masked() -> None:
    given = [GivenSecret("token", "old", OLD), GivenSecret("token", "new", NEW), GivenSecret("other", "", OTHER)]
    masked = masker_of(given).mask(b"<".join([OLD, NEW, OTHER]))
    assert masked == b"[secret token]<[secret token]<[secret other]"


def test_a_secret_without_a_file_name_gets_no_file() -> None:
    files = secret_files([GivenSecret("token", "old", OLD), GivenSecret("other", "", OTHER)])
    assert [(each.name, each.content) for each in files] == [("old", OLD)]
