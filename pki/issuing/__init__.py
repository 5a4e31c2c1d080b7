"""Issuing identities where the authority's key is on this machine: one identity, or a whole inventory."""
