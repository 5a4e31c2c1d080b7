"""Inspects a TLS listener from outside: its certificates, its requirements, and its problems."""
