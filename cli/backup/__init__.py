"""The verbs of ``sluice backup``."""
