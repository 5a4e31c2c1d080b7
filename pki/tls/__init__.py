"""Mutual TLS: contexts, listeners, bulk streams, and the record of who is connected."""
