"""Will this training run fit, and what fills each GPU?

>>> from vram import Scenario, estimate
>>> e = estimate(Scenario.from_link("model=llama-3-8b&gpus=8&zero=3"))
>>> e.verdict
'fits'
"""

from .errors import ScenarioError
from .estimate import Estimate, estimate
from .families import shape_from_config
from .scenario import Scenario, WhatIf
from .shape import ParameterCount, Shape, count_parameters

__all__ = [
    "Estimate",
    "ParameterCount",
    "Scenario",
    "ScenarioError",
    "Shape",
    "WhatIf",
    "count_parameters",
    "estimate",
    "shape_from_config",
]
