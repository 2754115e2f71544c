"""The post-mortem as one self-contained page: no scripts, nothing from a network, user content always escaped."""
