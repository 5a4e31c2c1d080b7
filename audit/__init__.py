"""Examine a live cluster: every listener, every hostile case, with evidence of what was sent and what was answered."""
