"""Reading what the security provider recorded: one line for each mutual TLS handshake that a JVM completed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from runtime.messages import ConnectionEvidence

EVIDENCE_FILE = "connections.jsonl"

MAX_EVIDENCE_LINES = 1000
"""Most lines the provider writes per process, and most that are read."""

MAX_EVIDENCE_BYTES = MAX_EVIDENCE_LINES * 4096


def read_evidence(identity_dir: Path) -> tuple[ConnectionEvidence, ...]:
    """The connections that the JVM with this identity directory made or accepted; none before its first one.

    An unfinished last line (it is being written) is left out.
    """
    try:
        with (identity_dir / EVIDENCE_FILE).open("rb") as file:
            data = file.read(MAX_EVIDENCE_BYTES)
    except FileNotFoundError:
        return ()
    decoder = msgspec.json.Decoder(ConnectionEvidence)
    found = []
    for line in data.splitlines(keepends=True)[:MAX_EVIDENCE_LINES]:
        if line.endswith(b"\n"):
            try:
                found.append(decoder.decode(line))
            except msgspec.DecodeError:
                continue  # the file lies in a directory that the job's own code can write to
    return tuple(found)
