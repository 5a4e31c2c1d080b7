from .pages import PAGES as PAGES
