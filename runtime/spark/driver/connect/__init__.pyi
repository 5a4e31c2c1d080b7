from .address import published_port as published_port
