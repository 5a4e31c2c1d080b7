"""Issuing: one engine that signs leaves, and local issuers of one identity or an inventory on top of it."""
