"""The sluice command."""
