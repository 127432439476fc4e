"""The tokens that the COCO caption evaluation counts for BLEU: Stanford's Penn Treebank tokenizer.

The evaluation runs a Java program. These are its rules; at every position the longest match is taken. Dashes, quotes,
currencies, fractions, addresses and smileys were compared with the program's output (tests/data/bleu).
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["tokenize_ptb"]

# Tokens that the evaluation drops. "?!" and "!!!" are kept, and so are brackets, since texts are lower-cased.
_DROPPED = frozenset("'' ' `` ` . ? ! , : - -- ... ;".split())

_LETTER = r"[^\W\d_\u00B2\u00B3\u00B9\u00BC-\u00BE\u2070-\u2089\u2150-\u215F]|\u00AD"
_WORD = rf"(?:{_LETTER})(?:{_LETTER}|\d)*(?:[.!?](?:{_LETTER})(?:{_LETTER}|\d)*)*"
_APOS = r"['\u2019\u0092]|&apos;"
_ANY_APOS = rf"(?:{_APOS}|[`\u0091\u2018\u201B])"
_NUMBER = r"(?:\d*(?:[.:,\u00AD\u066B\u066C]\d+)+|\d+)"
_AFTER_HYPHEN = rf"(?:{_LETTER}|\d)+(?:_(?:{_LETTER}|\d)+)*|[A-Za-z](?:\.[A-Za-z])+\."
_HYPHENED = rf"(?:{_LETTER}|\d)(?:{_LETTER}|[\d_.,])*(?:-(?:{_AFTER_HYPHEN}))+"
_AFTER_URL = r"[^ \t\n\f\r\"<>|.!?(){},-]"

_MONTHS = "Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec"
_DAYS = "Mon|Tues?|Wed|Thu|Thurs|Fri"
_STATES = """(?i:Ala|Ariz|Calif|Colo|Conn|Ct|Dak|Fla|Ga|Ind|Kans?|Ky|La|Md|Mich|Minn|Mo|Mont|Neb|Nev|Okla|Penn|Tenn|Va
    |Vt|Wisc?|Wyo)|A(?i:z)|A(?i:rk)|D(?i:el)|I(?i:ll)|M(?i:ass)|M(?i:iss)|O(?i:re)|P(?i:a)|T(?i:ex)|W(?i:ash)"""
_FIRMS = "Inc|Cos?|Corp|Pp?t[ye]s?|Ltd|Plc|Rt|Bancorp|Dept|Bhd|Assn|Univ|Intl|Sys"
_TITLES = """Mr|Mrs|Ms|Drs?|Profs?|Sens?|Reps?|Attys?|Lt|Col|Gen|Messrs|Govs?|Adm|Rev|Maj|Sgt|Cpl|Pvt|Capt|Ste?|Ave
    |Pres|Lieut|Hon|Brig|Co?mdr|Pfc|Spc|Supts?|Det|Mt"""
# a period after one of these belongs to it
_ABBREVIATIONS = rf"""(?i:(?:Ed|Ph)\.D|a\.k\.a|{_MONTHS}|{_DAYS}|{_FIRMS}|Ph|tel|est|ext|sq|ft|Jr|Sr|Bros|Blvd|Rd|Esq
    |etc|al|seq|{_TITLES}|vs|v|Alex|Wm|Jos|Cie|cf|treas|Invt|Elec|Natl|M[ft]g)|{_STATES}|M(?i:iss)|[A-Za-z](?:\.[A-Za-z])+
    |(?:Canada|Sino|Korean|EU|Japan|non)-U\.S|U\.S\.-(?:U\.K|U\.S\.S\.R)"""
# after a single letter with a period these begin a new sentence: "Plan B. The dog"
_OPENERS = """A|About|According|Additionally|After|An|As|At|But|Earlier|He|Her|Here|However|If|In|It|Last|Many|More
Mr\\.|Ms\\.|Now|Once|One|Other|Our|She|Since|So|Some|Such|That|The|Their|Then|There|These|They|This|We|What|When
While|Yet|You
""".strip().replace("\n", "|")
_SMILEY = r"[<>]?[:;=][\-o*']?[()DPdpO\\{@|\[\]]"
_ASIAN_SMILEY = (
    r"[\^x=~<>]\.[\^x=~<>]|[\-\^x=~<>']_[\-\^x=~<>']"
    r"|\([\-\^x=~<>'][_.]?[\-\^x=~<>']\)|\([\^x=~<>']-[\^x=~<>'`]\)"
)
_TAG_NAME = r"[A-Za-z][A-Za-z0-9_:.-]*"
_SYMBOLS = (
    r"+%&~^|\\\u00A6-\u00A9\u00AC\u00AE\u00AF\u00B0-\u00BA\u00D7\u00F7\u0387\u05BE\u05C0\u05C3\u05C6\u05F3\u05F4"
    r"\u0600-\u0603\u0606-\u060A\u060C\u0614\u061B\u061E\u066A\u066D\u0703-\u070D\u07F6-\u07F8\u0964\u0965\u0E4F\u1FBD"
    r"\u2016\u2017\u2020-\u2023\u2030-\u2038\u203B\u203E-\u2042\u2044\u207A-\u207F\u208A-\u208E\u2100-\u214F"
    r"\u2190-\u2BFF\u3012\u30FB\uFF01-\uFF0F\uFF1A-\uFF20\uFF3B-\uFF40\uFF5B-\uFF65"
)

# (name, pattern): the longest match is taken, the first of equally long ones. The group `then` (what must follow) adds
# to the length but is not part of the token.
_RULES: list[tuple[str, str]] = [
    ("plain", r"(?i:can)(?=(?P<then>(?i:not)(?!\w)))"),
    ("plain", r"(?i:gon)(?=(?P<then>(?i:na)(?!\w)))|(?i:got)(?=(?i:ta)(?!\w))"),
    ("plain", r"(?i:got|wan|lem|gim)(?=(?P<then>(?i:(?<=got)ta|(?<=wan)na|(?<=lem)me|(?<=gim)me)(?!\w)))"),
    ("plain", r"'[tT](?=(?P<then>(?i:is|was)(?!\w)))"),
    ("plain", rf"<(?:[!?][A-Za-z\-][^>\n]*|{_TAG_NAME}(?:[ ]+[^>\n]*)?/?|/{_TAG_NAME}[ ]*)>"),
    ("plain", r"(?i:https?)://[^ \t\n\f\r\"<>|()]+" + _AFTER_URL),
    (
        "plain",
        rf"(?:(?i:www\.(?:[^ \t\n\f\r\"<>|.!?(){{}},]+\.)+[a-zA-Z]{{2,4}})"
        rf"|(?:[^ \t\n\f\r\"`'<>|.!?(){{}},-_$]+\.)+(?:com|net|org|edu))(?:/[^ \t\n\f\r\"<>|()]+{_AFTER_URL})?",
    ),
    (
        "plain",
        r"<?[a-zA-Z0-9][^ \t\n\f\r\"<>|()\u00A0{}]*@(?:[^ \t\n\f\r\"<>|(){}.\u00A0]+\.)*"
        r"[^ \t\n\f\r\"<>|(){}.\u00A0]+>?",
    ),
    ("plain", r"[@#][a-zA-Z_]\w*"),
    # "don't", "it's": the word without its clitic, then the clitic
    ("plain", rf"(?:{_LETTER}|\d)+?(?=(?P<then>[nN](?:{_APOS})[tT](?!\w)))"),
    ("clitic", rf"[nN](?:{_APOS})[tT](?!\w)"),
    ("clitic", rf"(?:{_APOS})(?i:[msd]|re|ve|ll)(?![^\W_])"),
    ("plain", _WORD),
    ("plain", rf"(?:{_LETTER}|\d)+(?:_+(?:{_LETTER}|\d)+)*"),
    ("plain", r"\d{1,2}[\-/]\d{1,2}[\-/]\d{2,4}"),
    ("plain", rf"[\-+]?{_NUMBER}"),
    ("fraction", r"(?:\d{1,4}[- \u00A0])?\d{1,4}(?:/|\u2044)\d{1,4}|[\u00BC\u00BD\u00BE\u2153-\u215E]"),
    (
        "phone",
        r"(?:\(\d{2,3}\)[ \u00A0]?|(?:\+\+?)?(?:\d{2,4}[\- \u00A0])?\d{2,4}[\- \u00A0])\d{3,4}[\- \u00A0]?\d{3,5}"
        r"|(?:(?:\+\+?)?\d{2,4}\.)?\d{2,4}\.\d{3,4}\.\d{3,5}",
    ),
    ("plain", rf"(?:{_ABBREVIATIONS})\."),
    ("plain", rf"[A-Za-z]\.(?!\s+(?:{_OPENERS})(?:\s|$)|\s+<[A-Za-z/!])"),
    ("plain", r"(?i:ca|figs?|prop|nos?|art|bldg|pp|op)\.(?=(?P<then>\s?\d))"),
    ("plain", rf"{_WORD}\.(?=(?P<then>[,;:\u3001]))"),
    ("plain", rf"(?:{_APOS})n(?:{_APOS})?"),
    ("plain", rf"[lLdDjJyY](?:{_APOS})(?=(?:{_LETTER}))"),
    ("plain", rf"(?i:dunkin|somethin|ol)(?:{_APOS})"),
    ("plain", rf"(?:{_APOS})(?:em|cause|till?)(?!\w)|(?:{_APOS})[2-9]0s"),
    ("plain", rf"[A-HJ-XZn]{_ANY_APOS}(?:{_LETTER}){{2}}(?:{_LETTER}|\d)*"),
    ("plain", rf"[dDoOlL]{_ANY_APOS}(?:{_LETTER})(?:{_LETTER}|\d)*"),
    ("plain", rf"(?:{_LETTER})(?:{_LETTER})*[aeiouy]{_ANY_APOS}[aeiouA-Z](?:{_LETTER})*"),
    ("plain", r"(?i:cont'd\.?|nor'easter|c'mon|e'er|s'mores|ev'ry|li'l|nat'l)"),
    ("plain", _HYPHENED),
    ("plain", rf"{_HYPHENED}\.(?=(?P<then>[,;:\u3001]))"),
    ("plain", r"[A-Z]+(?:[+&][A-Z]+)+"),
    ("plain", r"[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}(?:/[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}){1,2}"),
    ("plain", r"(?i:[CF])(?:#|\+\+)"),
    ("smiley", rf"(?:{_SMILEY})(?![A-Za-z0-9])|{_ASIAN_SMILEY}"),
    ("currency", r"(?:US|HK|[ACNS]|(?i:us|a|c|hk))?\$|[\u00A2-\u00A5\u0080\u20A0\u20AC\u060B\u0E3F\u20A4\u20A9]"),
    ("entity", r"(?i:&amp;|&lt;|&gt;)"),
    ("dropped", r"(?i:&quot;|&nbsp;|&apos;)"),
    ("dropped", r"\.{2,}|(?:\.[ \u00A0]){2,}\.|[\u0085\u2026]"),
    ("plain", r"[?!]+"),
    ("dropped", r"[.,;:\u3001]"),
    ("dropped", r"-{1,}|[\u0096\u0097\u2010-\u2015]+"),
    ("dropped", r"''|``|['\"`\u2018\u2019\u201B-\u201D\u0091-\u0094\u2039\u203A\u00AB\u00BB]"),
    ("bracket", r"[()\[\]{}]"),
    ("plain", r"\*+|_+|/|@|#|<|>|="),
    ("plain", rf"[{_SYMBOLS}]"),
    ("plain", r"[\u201A\u201E]"),
]
_COMPILED = [(name, re.compile(pattern, re.VERBOSE if "\n" in pattern else 0)) for name, pattern in _RULES]
_SIMPLE = re.compile(r"[A-Za-z]+(?=[ ,;]|$)")  # fast path for most of a text: a word before a space or a comma
_ENTITIES = {"&amp;": "&", "&lt;": "<", "&gt;": ">"}
_SPLIT = frozenset("cannot gonna gotta lemme gimme wanna".split())
_BRACKETS = str.maketrans({"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"})
_CURRENCY = {"\u00a2": "cents", "\u00a3": "#"} | dict.fromkeys("\u0080\u00a4\u20a0\u20ac", "$")
_FRACTIONS = {"\u00bc": "1/4", "\u00bd": "1/2", "\u00be": "3/4", "\u2153": "1/3", "\u2154": "2/3"}


def tokenize_ptb(text: str) -> list[str]:
    """The tokens of a text, lower-cased and without punctuation marks."""
    return list(_match_tokens(text))


@lru_cache(maxsize=1 << 14)  # references repeat themselves
def _match_tokens(text: str) -> tuple[str, ...]:
    text = text.replace("\n", " ")
    tokens: list[str] = []
    at = 0
    while at < len(text):
        simple = _SIMPLE.match(text, at)
        if simple and simple[0].lower() not in _SPLIT:
            tokens.append(simple[0].lower())
            at = simple.end()
            continue
        best, kind, longest = "", "", 0
        for name, pattern in _COMPILED:
            found = pattern.match(text, at)
            if found is None:
                continue
            length = len(found[0]) + len(found.groupdict().get("then") or "")
            if length > longest:
                best, kind, longest = found[0], name, length
        at += len(best) or 1  # characters that no rule matches (an emoji, a space) are skipped
        token = _format_token(kind, best)
        if token and token not in _DROPPED:
            tokens.append(token)
    return tuple(tokens)


def _format_token(kind: str, token: str) -> str:
    """A token as the program writes it; "" for one that it drops."""
    if kind in ("", "dropped"):
        return ""
    token = token.lower().replace("\u00ad", "").replace(" ", "\u00a0")
    if kind == "clitic":
        return re.sub(_ANY_APOS, "'", token)
    if kind == "entity":
        return _ENTITIES[token]
    if kind == "currency":
        return _CURRENCY.get(token, token)
    if kind == "fraction":
        return _FRACTIONS.get(token, token)
    if kind in ("bracket", "smiley", "phone"):
        return token.translate(_BRACKETS)
    return token
