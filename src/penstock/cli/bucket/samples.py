"""Sample documents: breweries and their beers, with realistic sizes and fields."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

_FIRST = (
    "Amber", "Black", "Blue", "Copper", "Crooked", "Drunken", "Foggy", "Golden", "Grey", "Hidden", "Hoppy",
    "Iron", "Laughing", "Lazy", "Little", "Lonely", "Lucky", "Midnight", "Northern", "Old", "Quiet", "Red",
    "Rolling", "Rusty", "Silver", "Sleepy", "Stony", "Stormy", "Thirsty", "Wandering", "White", "Wild",
)  # fmt: skip
_SECOND = (
    "Anchor", "Badger", "Barn", "Bear", "Bridge", "Canal", "Crow", "Dog", "Fox", "Goat", "Hare", "Harbour",
    "Heron", "Hill", "Horse", "Lantern", "Lighthouse", "Mill", "Monk", "Moose", "Otter", "Owl", "Pier", "Pony",
    "Raven", "River", "Rooster", "Sparrow", "Stag", "Tower", "Wagon", "Wolf",
)  # fmt: skip
_STYLES = (
    ("India Pale Ale", 5.5, 7.5, 40, 70),
    ("Pale Ale", 4.5, 6.0, 25, 45),
    ("Pilsner", 4.2, 5.4, 25, 40),
    ("Kölsch", 4.4, 5.2, 18, 28),
    ("Weißbier", 4.9, 5.6, 8, 15),
    ("Bière de Garde", 6.0, 8.5, 18, 28),
    ("Dry Stout", 3.8, 5.0, 30, 45),
    ("Imperial Stout", 8.0, 12.0, 50, 90),
    ("Porter", 4.0, 6.0, 18, 35),
    ("Saison", 5.0, 7.0, 20, 35),
    ("Märzen", 5.4, 6.3, 18, 24),
    ("Barley Wine", 8.0, 12.0, 35, 70),
)
_PLACES = (
    ("Bamberg", "Germany", 49.8917, 10.8917),
    ("Gent", "Belgium", 51.0543, 3.7174),
    ("Plzeň", "Czech Republic", 49.7384, 13.3736),
    ("Portland", "United States", 45.5152, -122.6784),
    ("São Paulo", "Brazil", -23.5505, -46.6333),
    ("Sheffield", "United Kingdom", 53.3811, -1.4701),
    ("København", "Denmark", 55.6761, 12.5683),
    ("Montréal", "Canada", 45.5017, -73.5673),
    ("横浜", "Japan", 35.4437, 139.6380),
    ("Wellington", "New Zealand", -41.2866, 174.7756),
)
_NOTES = (
    "bread crust",
    "burnt sugar",
    "citrus peel",
    "clove",
    "dark chocolate",
    "dried fig",
    "fresh hay",
    "grapefruit",
    "green apple",
    "honey",
    "pine resin",
    "ripe banana",
    "roasted coffee",
    "smoke",
    "vanilla",
    "white pepper",
)
_BEERS_PER_BREWERY = 9


def make_samples(count: int, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return an iterator over `count` pairs of key and document. The same seed gives the same documents."""
    chance = random.Random(seed)
    return (make_sample(chance, number) for number in range(count))


def make_sample(chance: random.Random, number: int) -> tuple[str, dict[str, Any]]:
    """Return the key and the sample document for a number from 0 on. Every number has its own key."""
    name = f"{chance.choice(_FIRST)} {chance.choice(_SECOND)}"
    if number % (_BEERS_PER_BREWERY + 1) == 0:
        return _key("brewery", name, number), _make_brewery(chance, name)
    return _key("beer", name, number), _make_beer(chance, name, number)


def _key(kind: str, name: str, number: int) -> str:
    return f"{kind}_{name.lower().replace(' ', '_')}_{number}"


def _make_brewery(chance: random.Random, name: str) -> dict[str, Any]:
    city, country, latitude, longitude = chance.choice(_PLACES)
    return {
        "type": "brewery",
        "name": f"{name} Brewery",
        "city": city,
        "country": country,
        "geo": {
            "lat": round(latitude + chance.uniform(-0.1, 0.1), 6),
            "lon": round(longitude + chance.uniform(-0.1, 0.1), 6),
        },
        "phone": None if chance.random() < 0.2 else f"+{chance.randrange(10**9, 10**11)}",
        "founded": chance.randrange(1650, 2025),
        "visitors": chance.random() < 0.6,
        "updated": _make_timestamp(chance),
    }


def _make_beer(chance: random.Random, name: str, number: int) -> dict[str, Any]:
    style, weak, strong, mild, bitter = chance.choice(_STYLES)
    notes = chance.sample(_NOTES, chance.randrange(2, 6))
    *others, last = notes
    return {
        "type": "beer",
        "name": f"{name} {style}",
        "brewery": number // (_BEERS_PER_BREWERY + 1) * (_BEERS_PER_BREWERY + 1),
        "style": style,
        "abv": round(chance.uniform(weak, strong), 1),
        "ibu": chance.randrange(mild, bitter),
        "price_cents": chance.randrange(180, 1900),
        "notes": notes,
        "ratings": [chance.randrange(1, 6) for _ in range(chance.randrange(8))],
        "description": f"A {style} that tastes of {', '.join(others)} and {last}.",
        "updated": _make_timestamp(chance),
    }


def _make_timestamp(chance: random.Random) -> str:
    return (
        f"{chance.randrange(2015, 2026)}-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}"
        f"T{chance.randrange(24):02}:{chance.randrange(60):02}:{chance.randrange(60):02}Z"
    )
