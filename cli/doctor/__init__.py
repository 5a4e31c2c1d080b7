"""``sluice doctor``: is this machine fit to run a cluster? :mod:`.facts` reads, :mod:`.checks` decides."""
