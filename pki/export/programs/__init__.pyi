from .catalogue import CATALOGUE as CATALOGUE, Program as Program, export_for as export_for
from .zookeeper import SECURE_CLIENT_PORT as SECURE_CLIENT_PORT
