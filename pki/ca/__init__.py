"""The online authority: enrolment by join token, renewal by certificate, job identities for JobManagers, a ledger."""
