from .forms import MIN_MASKED_BYTES as MIN_MASKED_BYTES, is_maskable as is_maskable
from .masker import Masker as Masker, MaskingStream as MaskingStream
