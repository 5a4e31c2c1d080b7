"""Certificate revocation lists: made, kept, delivered to identity directories, and read by running processes."""
