"""The checks, one module per subject; :mod:`sluice.audit.catalogue` lists them."""
