"""The run directory: its layout, the records in it, writing them and reading them back. Used by every process."""
