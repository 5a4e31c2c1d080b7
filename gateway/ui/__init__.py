"""Pages of the auth service: what only it knows about sessions, tokens, certificates and the audit log."""
