"""Identities in the formats, and with the configuration, of other programs."""
