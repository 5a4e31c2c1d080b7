"""The look of Sluice's pages, shared by REST and the auth service: templates, a stylesheet, scripts. No data."""
