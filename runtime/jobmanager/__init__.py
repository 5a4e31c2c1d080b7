"""Dispatcher, resource manager and job master."""
