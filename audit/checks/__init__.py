"""The checks, one module for each subject; :mod:`audit.catalogue` puts them together."""
