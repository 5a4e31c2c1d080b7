"""Everything under ``/auth/``: signing in and out, passes, and the command's device code."""
