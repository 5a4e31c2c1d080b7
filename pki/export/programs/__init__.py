"""Ready-made configuration for other programs that take a Sluice identity: one module per program."""
