from .archive import make_class_archive as make_class_archive
from .rehearsal import class_names as class_names
