from .ended_ui import EndedUi as EndedUi
from .ended_uis import ENDED_UI_DIRECTORY as ENDED_UI_DIRECTORY, EndedUis as EndedUis
