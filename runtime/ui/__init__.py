"""The dashboard: server-rendered pages with REST's data."""
