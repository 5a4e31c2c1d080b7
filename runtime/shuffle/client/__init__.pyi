from .client import MapWriter as MapWriter, Segment as Segment, ShuffleClient as ShuffleClient
from .connection import WorkerConnection as WorkerConnection
