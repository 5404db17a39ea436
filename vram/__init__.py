"""Memory of a training run, in closed formulas."""
