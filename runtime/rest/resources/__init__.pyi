from .leader import leader_of as leader_of
from .logs import MAX_OFFSET as MAX_OFFSET
from .overview import connections_seen as connections_seen, get_overview as get_overview
from .queues import queues_seen as queues_seen
from .shuffle import service_seen as service_seen, shuffle_of as shuffle_of
from .taskmanagers import taskmanagers_seen as taskmanagers_seen
from .ui import UI_SEGMENTS as UI_SEGMENTS
