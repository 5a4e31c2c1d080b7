"""The dashboard: pages for people, made on the server from what REST knows."""
