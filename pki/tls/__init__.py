"""Mutual TLS: contexts, listeners, bulk streams, and a record of open connections."""
