"""Certificates, keys, listeners and homes as people see them: descriptions and problems with remedies."""
