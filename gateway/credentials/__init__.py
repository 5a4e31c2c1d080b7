"""Credentials: API tokens, sessions, users and short-lived passes; how they are made, stored and revoked."""
