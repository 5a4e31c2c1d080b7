"""The look of Sluice's pages, shared by REST and the auth service: templates, one stylesheet, scripts. No data."""
