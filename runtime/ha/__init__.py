"""High availability: who leads, and what the next leader has to know."""
