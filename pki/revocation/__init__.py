"""Certificate revocation lists: signing, storing, distributing to identity directories, and loading them."""
