"""Compatibility with the recorded messages and stored records of earlier releases (ADR 126)."""
