from .assembly import exporting as exporting
