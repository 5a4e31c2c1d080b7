"""Every command of the documentation is run: ``make test-docs``."""
