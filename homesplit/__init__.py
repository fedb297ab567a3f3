"""homesplit: how two machines at home should share one language model."""

__version__ = "0.1.0"
