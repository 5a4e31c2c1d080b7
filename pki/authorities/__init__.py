"""Certificate authorities: signing, their keys on disk, which of them are trusted, and the phases of their rotation."""
