"""What principals present: API tokens, sessions, users, short-lived access tokens; made, stored and revoked."""
