"""The protocol between workers and those who push and fetch: frames, errors, check values. No I/O."""
