"""The hostile pipeline: what a tenant's code tries from inside its own job. It goes to the cluster as one package.

Nothing but the standard library and PySpark is imported here, and imports inside are relative: on the cluster the
package is called ``sluice_insider``, and Sluice need not be there.
"""
