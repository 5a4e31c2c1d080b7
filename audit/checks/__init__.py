"""The checks, one module for each subject; :mod:`sluice.audit.catalogue` puts them together."""
