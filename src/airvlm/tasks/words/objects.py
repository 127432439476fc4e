"""Objects in a text: the 80 COCO categories, the words that count for each, and how a description is searched.

Knows nothing about images, ground truth or metrics. Which words a form like "buses" or "seated" becomes first is
the business of `singular.py`; it is where published CHAIR figures part ways.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from airvlm.tasks.words.singular import Words, base_forms
from airvlm.tasks.words.tagger import find_tagger
from airvlm.tasks.words.tokens import tokenize

__all__ = ["CATEGORIES", "OBJECT_OF", "Mention", "category_of", "mentions", "merge_compounds"]

# Category -> further words that count for it. Words that the official scripts list but can never match are left
# out, because counting them would change published figures: "motor bike", "cheesecake" (a stray space there),
# "iPhone" (texts are lower-cased) and "stove top oven" (three words; windows are two words wide).
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
    # things worn and carried
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
    # the house
    "book": "",
    "clock": "",
    "vase": "",
    "scissors": "",
    "teddy bear": "teddybear",
    "hair drier": "hairdryer",
    "toothbrush": "",
}
CATEGORIES: tuple[str, ...] = tuple(_TABLE)
OBJECT_OF: dict[str, str] = {
    word.replace("_", " "): category
    for category, words in _TABLE.items()
    for word in (category.replace(" ", "_"), *words.split())
}

# Two words that are one: an object of its own, or ("home plate", "train track") something that is no object.
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
COMPOUNDS["wine glas"] = "wine glass"  # what one of the singularisers makes of "wine glass"


@dataclass(frozen=True)
class Mention:
    """A word of a text that names an object."""

    word: str  # in its base form
    category: str
    token: int  # index of its first token in the text


def merge_compounds(words: Iterable[str]) -> list[tuple[str, int]]:
    """Words with pairs joined, greedily from the left, each with the index of its first token."""
    words = list(words)
    merged, i = [], 0
    while i < len(words):
        pair = COMPOUNDS.get(" ".join(words[i : i + 2])) if i + 1 < len(words) else None
        merged.append((pair or words[i], i))
        i += 2 if pair else 1
    return merged


def mentions(text: str, words: Words = "pattern") -> list[Mention]:
    """Objects that a text names, every time it names them, in order."""
    return list(_mentions(text, words)[0])


def length(text: str, words: Words = "pattern") -> int:
    """Tokens of a text after pairs are joined: CHAIR's Len."""
    return _mentions(text, words)[1]


@lru_cache(maxsize=4096)
def _mentions(text: str, words: Words) -> tuple[tuple[Mention, ...], int]:
    merged = merge_compounds(_base_forms(text.lower(), words))
    size = len(merged)
    seats = {"toilet", "seat"} <= {word for word, _ in merged}
    found = [
        Mention(word, OBJECT_OF[word], at)
        for word, at in merged
        # the seat of a toilet is no chair
        if word in OBJECT_OF and not (seats and word == "seat")
    ]
    return tuple(found), size


def _base_forms(text: str, words: Words) -> list[str]:
    if words != "tagged":
        return base_forms(tokenize(text), words)
    tagger = find_tagger("nltk")
    assert tagger is not None
    return tagger.lemmas(text)


def category_of(name: str) -> str | None:
    """The category that a single object name stands for, e.g. from an annotation file."""
    return OBJECT_OF.get(name.strip().lower())
