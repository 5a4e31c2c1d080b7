"""Looking at a TLS listener from outside: what it presents, what it asks for, and what is wrong with it."""
