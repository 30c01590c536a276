"""How many examples Hypothesis tries a property with."""

from hypothesis import settings

_FULL, _FEWEST = 100, 5
"""Examples of a property that states no number, in the profile `full`; and the fewest of any property."""


def scaled(examples: int) -> int:
    """Return how many examples the chosen profile has for a property that has `examples` in the profile `full`."""
    return max(_FEWEST, examples * settings().max_examples // _FULL)
