"""The audit log: an append-only hash chain in segments, signed, verified and followed."""
