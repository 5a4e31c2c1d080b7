"""The auth service that stands behind Envoy: authentication, authorization, audit."""
