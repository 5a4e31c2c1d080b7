"""The reverse proxy in front: Envoy's process, what is published to it, and NGINX in its place."""
