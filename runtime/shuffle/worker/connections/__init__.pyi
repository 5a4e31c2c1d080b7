from .server import DataServer as DataServer
