"""A SPIFFE client under another user id: ``as_caller.py SOCKET UID``; prints what it got, or how it was refused.

The user changes after the imports: the interpreter and its packages may be out of reach for the other user.
"""

import os
import sys

from spiffe import WorkloadApiClient
from spiffe.errors import PySpiffeError


def main() -> None:
    """Fetch as the user."""
    socket, uid = sys.argv[1], int(sys.argv[2])
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    with WorkloadApiClient(f"unix:{socket}", default_timeout=10.0) as client:
        try:
            identities = [str(svid.spiffe_id) for svid in client.fetch_x509_svids()]
        except PySpiffeError as error:
            sys.stdout.write(f"refused: {error}\n")
            return
    sys.stdout.write("\n".join(identities) + "\n")


main()
