"""``sluice pki``: authorities, identities, revocation, rotation."""
