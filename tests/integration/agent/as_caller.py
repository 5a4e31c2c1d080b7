"""A SPIFFE client under another user id: ``as_caller.py SOCKET UID``.

It prints the identities that it received, or the reason why it was refused. It changes the user after the
imports: the other user may have no access to the interpreter and its packages.
"""

import os
import sys

from spiffe import WorkloadApiClient
from spiffe.errors import PySpiffeError


def main() -> None:
    """Change to the given user and fetch its identities."""
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
