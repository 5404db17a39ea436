"""What each architecture's layers hold, and how its config.json says so."""

from .reading import FAMILIES, Reading, read_shape, shape_from_config

__all__ = ["FAMILIES", "Reading", "read_shape", "shape_from_config"]
