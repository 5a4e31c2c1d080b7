from .forms import is_maskable as is_maskable
from .masker import Masker as Masker
