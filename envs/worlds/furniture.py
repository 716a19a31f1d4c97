"""What houses are made of: receptacles and things of each room, what fits where, and what can be done with it.

The kinds of rooms, goals and actions are those of ALFWorld (arXiv 2010.03768); the tables are our own.
"""

from __future__ import annotations

ROOMS: dict[str, dict[str, tuple[int, int]]] = {
    "kitchen": {
        "cabinet": (2, 6),
        "countertop": (1, 3),
        "diningtable": (1, 1),
        "drawer": (1, 4),
        "fridge": (1, 1),
        "garbagecan": (1, 1),
        "microwave": (1, 1),
        "shelf": (0, 2),
        "sinkbasin": (1, 1),
        "stoveburner": (1, 4),
    },
    "bedroom": {
        "bed": (1, 1),
        "desk": (1, 2),
        "drawer": (2, 6),
        "dresser": (0, 1),
        "garbagecan": (1, 1),
        "safe": (0, 1),
        "shelf": (1, 5),
        "sidetable": (1, 2),
    },
    "livingroom": {
        "armchair": (1, 2),
        "cabinet": (0, 3),
        "coffeetable": (1, 1),
        "drawer": (1, 4),
        "garbagecan": (1, 1),
        "shelf": (1, 4),
        "sidetable": (1, 2),
        "sofa": (1, 1),
    },
    "bathroom": {
        "bathtubbasin": (0, 1),
        "cabinet": (2, 4),
        "countertop": (1, 1),
        "drawer": (0, 2),
        "garbagecan": (1, 1),
        "shelf": (1, 2),
        "sinkbasin": (1, 2),
        "toilet": (1, 1),
    },
}
"""Room to its kinds of receptacles, each with the fewest and the most of them."""

_TABLES = ("armchair", "bed", "coffeetable", "countertop", "desk", "diningtable", "dresser", "sidetable", "sofa")
_SMALL = (*_TABLES, "drawer", "safe", "shelf")
_TOOL = ("countertop", "diningtable", "drawer", "sinkbasin")
_FITS = {
    ("apple", "bread", "egg", "lettuce", "potato", "tomato"): (
        "countertop", "diningtable", "fridge", "garbagecan", "microwave", "sinkbasin",
    ),
    ("bowl", "cup", "plate"): ("cabinet", "countertop", "diningtable", "microwave", "shelf", "sinkbasin"),
    ("kettle", "pan", "pot"): ("cabinet", "countertop", "diningtable", "fridge", "sinkbasin", "stoveburner"),
    ("butterknife", "fork", "knife", "ladle", "spatula", "spoon"): _TOOL,
    ("dishsponge", "peppershaker", "saltshaker"): ("cabinet", "shelf", *_TOOL),
    ("mug",): ("cabinet", "desk", "microwave", "shelf", "sinkbasin", *_TOOL),
    ("alarmclock", "book", "box", "candle", "cd", "cellphone", "creditcard", "keychain", "laptop", "newspaper", "pen",
     "pencil", "pillow", "remotecontrol", "vase", "watch"): _SMALL,
    ("cloth", "soapbar", "soapbottle", "spraybottle", "tissuebox", "toiletpaper"): (
        "bathtubbasin", "cabinet", "countertop", "drawer", "garbagecan", "shelf", "sinkbasin", "toilet",
    ),
    ("desklamp", "floorlamp"): ("desk", "dresser", "sidetable", "coffeetable"),
}  # fmt: skip
FITS = {kind: frozenset(places) for kinds, places in _FITS.items() for kind in kinds}
"""Kind of thing to the kinds of receptacles in or on which it can be."""

THINGS: dict[str, tuple[str, ...]] = {
    "kitchen": (
        "apple", "bread", "egg", "lettuce", "potato", "tomato", "bowl", "cup", "mug", "plate", "kettle", "pan", "pot",
        "butterknife", "fork", "knife", "ladle", "spatula", "spoon", "dishsponge", "peppershaker", "saltshaker",
    ),
    "bedroom": (
        "alarmclock", "book", "cd", "cellphone", "creditcard", "keychain", "laptop", "mug", "pen", "pencil", "pillow",
    ),
    "livingroom": (
        "book", "box", "candle", "creditcard", "keychain", "laptop", "newspaper", "pillow", "remotecontrol", "vase",
        "watch",
    ),
    "bathroom": ("candle", "cloth", "soapbar", "soapbottle", "spraybottle", "tissuebox", "toiletpaper"),
}  # fmt: skip
"""Room to the kinds of things that may be in it; lamps are added for the goals that need one."""
LAMPS = {"bedroom": "desklamp", "livingroom": "floorlamp"}

OPENABLE = frozenset({"cabinet", "drawer", "fridge", "jar", "microwave", "safe", "urn"})
_FOOD = {"apple", "egg", "potato", "tomato"}
CAN = {
    "clean": frozenset({*_FOOD, "lettuce", "bowl", "butterknife", "cloth", "cup", "dishsponge", "fork", "kettle",
                        "knife", "ladle", "mug", "pan", "plate", "pot", "soapbar", "spatula", "spoon"}),
    "heat": frozenset({*_FOOD, "bread", "cup", "mug", "plate"}),
    "cool": frozenset({*_FOOD, "bread", "lettuce", "bowl", "cup", "mug", "pan", "plate", "pot"}),
    "slice": frozenset({*_FOOD, "bread", "lettuce"}),
    "use": frozenset(LAMPS.values()),
}  # fmt: skip
"""Action to the kinds of things with which it is possible."""
STATIONS = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""Action to the kind of receptacle that it needs."""
KNIVES = frozenset({"butterknife", "knife"})

HUT_RECEPTACLES = ("bed", "jar", "net", "sofa", "tub", "urn")
HUT_THINGS = ("cup", "egg", "gem", "key", "owl", "wax")
"""Of the tiny tier, where everything fits everywhere: short names, no two with the same first or last letter."""
