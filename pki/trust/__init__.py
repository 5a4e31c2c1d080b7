"""Distributes trust anchors and CRLs to identity directories, and reports what running processes have loaded."""
