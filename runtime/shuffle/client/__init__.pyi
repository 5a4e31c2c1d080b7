from .client import MapWriter as MapWriter, Segment as Segment, ShuffleClient as ShuffleClient
from .connection import WorkerConnection as WorkerConnection
from .pipelined import AnnouncedWriter as AnnouncedWriter, Producer as Producer, follow as follow
