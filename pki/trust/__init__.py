"""Trust anchors and CRLs on their way into identity directories, and what running processes have in memory."""
