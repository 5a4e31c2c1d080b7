"""Composition roots: one module for each process of a cluster. Nothing imports them but the command."""
