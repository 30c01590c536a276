"""How many modules a request enters on its way. A change may make a journey shorter; a longer one needs a reason."""

from journeys import measure_journeys

MOST = {"SET": 21, "GET": 16, "STREAM_REQ to the first mutation": 41, "a change, socket to batch": 42}
"""Journey -> its most modules."""


def test_journeys_do_not_grow():
    found = {name: len(journey.modules) for name, journey in measure_journeys().items()}
    assert found.keys() == MOST.keys()
    assert {name: count for name, count in found.items() if not 0 < count <= MOST[name]} == {}
