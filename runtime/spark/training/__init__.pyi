from .archive import make_class_archive as make_class_archive
