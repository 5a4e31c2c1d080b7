from .replay import Effect as Effect, Replay as Replay, Replayed as Replayed
from .requesters import Requesters as Requesters
