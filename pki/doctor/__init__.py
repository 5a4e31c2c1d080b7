"""``sluice pki doctor``: what is wrong in a home and with its running listeners, each finding with its remedy.

:mod:`pki.doctor.scan` reads, :mod:`pki.doctor.online` connects; the other modules decide, from values alone.
"""
