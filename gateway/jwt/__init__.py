"""JSON web tokens of outside issuers: keys, signatures, claims."""
