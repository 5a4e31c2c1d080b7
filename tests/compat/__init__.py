"""What earlier releases send and store, as recorded, and that this one still gets along with it (ADR 126)."""
