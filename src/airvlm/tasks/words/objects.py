"""Objects that a text names: the 80 COCO categories, the words that count for each, and the search for them.

Words are brought to a base form first (base_forms.py); that is where published CHAIR figures differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from airvlm.tasks.words.base_forms import Words, find_base_forms
from airvlm.tasks.words.tokens import tokenize

__all__ = [
    "CATEGORIES",
    "CATEGORY_OF",
    "Mark",
    "Mention",
    "count_tokens",
    "find_category",
    "find_mentions",
    "mark_mentions",
    "merge_compounds",
]

# Category -> other words that count for it. Words that the official scripts list but never match are left out, because
# counting them would change published figures: "motor bike" and "cheesecake" (stray spaces in the official list),
# "iPhone" (texts are lower-cased) and "stove top oven" (only pairs of words are looked up).
_TABLE: dict[str, str] = {
    # people
    "person": """adult baby baker bicyclist biker boy bride buyer caller camper chef child children cop cowboy
        coworker doctor drinker driver father female foreigner gentleman girl grandchild groom guy hunter
        kid lady male man mother offender officer passenger patient people pitcher player policeman politician rider
        serviceman shopper sister skateboarder skater skier snowboarder soldier solider student teenager thief
        traveler trespasser villager walker woman worker""",
    # vehicles
    "bicycle": "bike minibike trike unicycle",
    "car": "automobile cab coupe hatchback jeep limo minivan sedan suv taxi taxicab van",
    "motorcycle": "moped motor_cycle motorbike scooter",
    "airplane": "air_plane airbus aircraft biplane jet jetliner monoplane plane seaplane",
    "bus": "minibus trolley",
    "train": "caboose locomotive tramway",
    "truck": "firetruck hauler lorry pickup",
    "boat": """barge battleship canoe catamaran dinghy ferry ferryboat freighter houseboat kayak lifeboat liner
        motorboat paddleboat pontoon powerboat riverboat rowboat sailboard sailboat schooner ship skiff speedboat
        steamboat steamship trawler tugboat vessel watercraft yacht""",
    # the street
    "traffic light": "stop_light stoplight street_light streetlight traffic_signal",
    "fire hydrant": "hydrant",
    "stop sign": "",
    "parking meter": "",
    "bench": "pew",
    # animals
    "bird": """blackbird bluebird bluejay buzzard chickadee cockatiel cockatoo condor cormorant cowbird crow duck
        egret falcon finch flamingo fowl goose gosling gull heron hummingbird kingfisher loon lorikeet macaw magpie
        mallard oriole osprey ostrich owl parakeet parrot peacock peafowl pelican pheasant pigeon puffin quail raven
        robin rooster sandpiper seabird seagull shorebird songbird sparrow swan turkey vulture warbler waterbird
        waterfowl willet woodpecker""",
    "cat": "feline kitten tabby",
    "dog": """beagle brindle bulldog canine chihuahua cocker collie corgi dachshund doberman doggie doggy greyhound
        hound husky labrador mutt pitbull poodle pug pup puppy retriever rottweiler schnauzer sheepdog spaniel
        terrier weimaraner whippet""",
    "horse": "bronc bronco clydesdale colt equine foal mare mustang palomino pony racehorse stallion",
    "sheep": "ewe goat lamb ram",
    "cow": "bison buffalo bull calf cattle heifer holstein ox oxen zebu",
    "elephant": "",
    "bear": "panda",
    "zebra": "",
    "giraffe": "",
    # worn and carried
    "backpack": "knapsack",
    "umbrella": "",
    "handbag": "briefcase purse wallet",
    "tie": "bow bow_tie",
    "suitcase": "luggage suit_case",
    # sports
    "frisbee": "",
    "skis": "ski",
    "snowboard": "",
    "sports ball": "ball",
    "kite": "",
    "baseball bat": "",
    "baseball glove": "",
    "skateboard": "",
    "surfboard": "longboard shortboard skimboard wakeboard",
    "tennis racket": "racket",
    # the table
    "bottle": "",
    "wine glass": "",
    "cup": "",
    "fork": "",
    "knife": "knive pocketknife",
    "spoon": "",
    "bowl": "container",
    # food
    "banana": "",
    "apple": "",
    "sandwich": "burger cheeseburger hamburger sub",
    "orange": "",
    "broccoli": "",
    "carrot": "",
    "hot dog": "",
    "pizza": "",
    "donut": "bagel doughnut",
    "cake": "coffeecake cupcake pancake shortcake",
    # furniture
    "chair": "seat stool",
    "couch": "chesterfield futon loveseat recliner settee sofa",
    "potted plant": "houseplant",
    "bed": "",
    "dining table": "desk table",
    "toilet": "commode lavatory potty urinal",
    # devices and the kitchen
    "tv": "monitor television televison",
    "laptop": "computer laptop_computer lenovo macbook netbook notebook",
    "mouse": "",
    "remote": "",
    "keyboard": "",
    "cell phone": "cellphone mobile_phone phon phone smartphone telephone",
    "microwave": "",
    "oven": "stove stovetop",
    "toaster": "",
    "sink": "",
    "refrigerator": "freezer fridge",
    # other household objects
    "book": "",
    "clock": "",
    "vase": "",
    "scissors": "",
    "teddy bear": "teddybear",
    "hair drier": "hairdryer",
    "toothbrush": "",
}
CATEGORIES: tuple[str, ...] = tuple(_TABLE)
CATEGORY_OF: dict[str, str] = {
    word.replace("_", " "): category
    for category, words in _TABLE.items()
    for word in (category.replace(" ", "_"), *words.split())
}

# Pairs of words that are looked up as one; "home plate" and "train track" are there because they are not objects.
_PAIRS = [
    "motor bike, motor cycle, air plane, traffic light, street light, traffic signal, stop light, fire hydrant",
    "stop sign, parking meter, suit case, sports ball, baseball bat, baseball glove, tennis racket, wine glass",
    "hot dog, cell phone, mobile phone, teddy bear, hair drier, potted plant, laptop computer",
    "home plate, train track",
]
COMPOUNDS: dict[str, str] = {pair: pair for line in _PAIRS for pair in line.split(", ")}
for _animal in "bird cat dog horse sheep cow elephant bear zebra giraffe animal cub".split():
    COMPOUNDS |= {f"baby {_animal}": _animal, f"adult {_animal}": _animal}
COMPOUNDS |= {"passenger jet": "jet", "passenger train": "train", "bow tie": "tie", "toilet seat": "toilet"}
COMPOUNDS["wine glas"] = "wine glass"  # what `pattern` makes of "wine glass"


@dataclass(frozen=True)
class Mention:
    """A word of a text that names an object."""

    word: str  # base form
    category: str
    token: int  # index of its first token in the text


def merge_compounds(words: Iterable[str]) -> list[tuple[str, int]]:
    """Join pairs of words greedily from the left; each word comes with the index of its first token."""
    words = list(words)
    merged, i = [], 0
    while i < len(words):
        pair = COMPOUNDS.get(" ".join(words[i : i + 2])) if i + 1 < len(words) else None
        merged.append((pair or words[i], i))
        i += 2 if pair else 1
    return merged


def find_mentions(text: str, words: Words = "pattern") -> list[Mention]:
    """The objects that a text names, in order and with repetitions.

    Args:
        text: a description of an image.
        words: how words are brought to their base form, see base_forms.py.
    """
    return list(_search(text, words)[0])


def count_tokens(text: str, words: Words = "pattern") -> int:
    """The number of tokens of a text after pairs are joined: CHAIR's Len."""
    return _search(text, words)[1]


@lru_cache(maxsize=4096)
def _search(text: str, words: Words) -> tuple[tuple[Mention, ...], int]:
    merged = merge_compounds(find_base_forms(text.lower(), words))
    size = len(merged)
    seats = {"toilet", "seat"} <= {word for word, _ in merged}
    found = [
        Mention(word, CATEGORY_OF[word], at)
        for word, at in merged
        # the seat of a toilet is not a chair
        if word in CATEGORY_OF and not (seats and word == "seat")
    ]
    return tuple(found), size


def find_category(name: str) -> str | None:
    """The category of a single object name, e.g. from an annotation file."""
    return CATEGORY_OF.get(name.strip().lower())


# First words of pairs that count as their second word.
_OPENERS = ("baby", "adult", "passenger", "bow")


@dataclass(frozen=True)
class Mark:
    """A part of a text, from `start` to `end`, that names an object."""

    start: int
    end: int
    category: str
    present: bool  # whether the image shows one


def mark_mentions(text: str, mentions: Sequence[Mention], truth: Collection[str]) -> list[Mark]:
    """Where in a text its mentions are, in order; one that cannot be located is left out.

    Args:
        text: the text that was searched.
        mentions: what `find_mentions` found in it.
        truth: the categories that the image shows.
    """
    tokens, lowered = tokenize(text.lower()), text.lower()
    places: list[tuple[int, int] | None] = []
    end = 0
    for token in tokens:
        start = lowered.find(token, end)
        places.append((start, start + len(token)) if start >= 0 else None)
        end = start + len(token) if start >= 0 else end
    marks = []
    for mention in mentions:
        is_pair = " " in mention.word or tokens[mention.token] in _OPENERS
        first, last = places[mention.token], places[min(mention.token + is_pair, len(places) - 1)]
        if first is not None and last is not None:
            marks.append(Mark(first[0], last[1], mention.category, mention.category in truth))
    return marks
