from .election import ZooKeeperElection as ZooKeeperElection
