from .replay import DecisionChange as DecisionChange, Effect as Effect, Replay as Replay
from .requesters import Requesters as Requesters
