from .rotator import Patience as Patience, Rotator as Rotator, no_patience as no_patience
