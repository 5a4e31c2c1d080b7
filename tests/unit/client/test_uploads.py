"""The client for uploads in pieces, against a cluster that disconnects, goes away, and refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.cli.errors import AwayError, RefusedError
from sluice.client import uploads as module
from sluice.client.uploads import PATIENCE, upload

CONTENT = bytes(range(250)) * 10


class Cluster:
    """A fake cluster that receives uploads.

    ``trouble`` says for each piece how many bytes arrive and which error is raised.
    """

    def __init__(self, *trouble: tuple[int, Exception] | None) -> None:
        self.content = b""
        self.trouble = list(trouble)
        self.pauses: list[float] = []
        self.order: dict[str, object] = {}
        self.away_for_questions = 0

    def state(self) -> dict[str, object]:
        return {"id": "u", "offset": len(self.content), "complete": len(self.content) == self.order["size"]}

    async def announce(self, order: dict[str, object]) -> Any:
        self.order = order
        return self.state()

    async def stands(self, upload_id: str) -> Any:
        assert upload_id == "u"
        if self.away_for_questions:
            self.away_for_questions -= 1
            raise AwayError("away")
        return self.state()

    async def send(self, upload_id: str, offset: int, piece: bytes) -> Any:
        assert upload_id == "u"
        if offset != len(self.content):
            raise RefusedError("UploadConflict")
        trouble = self.trouble.pop(0) if self.trouble else None
        if trouble is None:
            self.content += piece
            return self.state()
        self.content += piece[: trouble[0]]
        raise trouble[1]

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


async def sent(cluster: Cluster, file: Path) -> str:
    """Upload all of ``file`` and return its id."""
    return await upload(file, announce=cluster.announce, stands=cluster.stands, send=cluster.send, pause=cluster.pause)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of three pieces."""
    monkeypatch.setattr(module, "PIECE_BYTES", 1000)
    path = tmp_path / "data.zip"
    path.write_bytes(CONTENT)
    return path


async def test_an_upload_is_sent_in_consecutive_pieces(file: Path) -> None:
    cluster = Cluster()
    assert await sent(cluster, file) == "u"
    assert cluster.content == CONTENT
    assert cluster.pauses == []


async def test_a_broken_upload_continues_at_the_offset_of_the_cluster(file: Path) -> None:
    cluster = Cluster(None, (333, AwayError("broke off")), (0, AwayError("away")), None)
    cluster.away_for_questions = 1
    await sent(cluster, file)
    assert cluster.content == CONTENT
    assert cluster.pauses[0] < cluster.pauses[1]


async def test_an_upload_continues_after_the_answer_to_a_piece_was_lost(file: Path) -> None:
    cluster = Cluster(None, None, (1000, AwayError("the answer was lost")))
    await sent(cluster, file)
    assert cluster.content == CONTENT


async def test_an_upload_gives_up_when_the_cluster_stays_away(file: Path) -> None:
    cluster = Cluster(*[(0, AwayError("away"))] * PATIENCE)
    with pytest.raises(AwayError):
        await sent(cluster, file)


async def test_a_refusal_of_a_piece_ends_the_upload(file: Path) -> None:
    cluster = Cluster(None, (0, RefusedError("not for you")))
    with pytest.raises(RefusedError, match="not for you"):
        await sent(cluster, file)


async def test_the_first_refusal_is_raised_if_the_upload_no_longer_exists(file: Path) -> None:
    cluster = Cluster(None, None, (500, RefusedError("another digest")))

    async def gone(upload_id: str) -> Any:
        raise RefusedError(f"there is no upload {upload_id}")

    with pytest.raises(RefusedError, match="another digest"):
        await upload(file, announce=cluster.announce, stands=gone, send=cluster.send, pause=cluster.pause)
