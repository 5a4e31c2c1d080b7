from .leader_switch import RestSwitch as RestSwitch
from .routes import PUBLISHED as PUBLISHED, ROUTES as ROUTES, published_routes as published_routes
from .server import RestServer as RestServer, make_application as make_application
