"""Identities, authorities, certificates and mutual TLS for every Sluice process."""
