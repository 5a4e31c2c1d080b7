"""The data plane's client in Python: pushes map outputs, reads them, and follows shuffles while they are written."""

from sluice.runtime.messages import WorkerAddress
from sluice.runtime.shuffle.client.client import MapWriter, Segment, ShuffleClient
from sluice.runtime.shuffle.client.pipelined import AnnouncedWriter, Producer, follow

__all__ = ["AnnouncedWriter", "MapWriter", "Producer", "Segment", "ShuffleClient", "WorkerAddress", "follow"]
