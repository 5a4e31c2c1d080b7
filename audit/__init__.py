"""Examines a live cluster and gives evidence: every listener, every hostile case, what was done and what was seen."""
