"""Authentication: every kind of credential becomes one principal."""
