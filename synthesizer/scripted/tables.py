"""What the built-in simulators know: company names, cities, airports, currencies. Facts of BFCL V3, as data."""

from __future__ import annotations

ENTITY_CONTAINERS = frozenset(
    {
        "root",
        "contents",
        "stocks",
        "tweets",
        "credit_card_list",
        "booking_record",
        "user_map",
        "orders",
        "comments",
        "retweets",
        "inbox",
    }
)
"""State fields whose keys are names of things, not of fields."""
FIXED_KEYS = frozenset({"type", "status", "market_status", "order_type", "card_type", "token_type", "token_scope"})
"""State fields whose values are words of the simulator."""

COMPANIES: dict[str, tuple[str, ...]] = {
    "AAPL": ("Apple",),
    "GOOG": ("Google",),
    "TSLA": ("Tesla",),
    "MSFT": ("Microsoft",),
    "NVDA": ("Nvidia", "NVIDIA"),
    "ZETA": ("Zeta Corp", "Zeta Corporation"),
    "ALPH": ("Alpha Tech", "Alphabet"),
    "OMEG": ("Omega Industries",),
    "QUAS": ("Quasar Ltd.", "Quasar Ltd"),
    "NEPT": ("Neptune Systems",),
    "SYNX": ("Synex Solutions", "Synex"),
    "AMZN": ("Amazon",),
    "GORI": ("Gorilla",),
}
"""Names by symbol; the first is the one the simulator resolves."""
TICKERS = ("BVN", "KLT", "QRX", "MDO", "FNX", "TRW", "HLV", "ZRN", "OKT", "PLM", "DVX", "GRB")
"""Symbols for companies that no table names."""
COMPANY_HINTS = ("gpu", "chip", "iphone", "electric", "search engine", "automobile", "e-commerce", "cloud")
"""Words that describe a company without naming it."""

ZIP_CODES = {
    "Rivermist": "83214",
    "Stonebrook": "74532",
    "Maplecrest": "56108",
    "Silverpine": "62947",
    "Shadowridge": "71354",
    "Sunset Valley": "83462",
    "Oakendale": "47329",
    "Willowbend": "52013",
    "Crescent Hollow": "69238",
    "Autumnville": "51479",
    "San Francisco": "94016",
}
TIRE_SHOP = "456 Oakwood Avenue"
"""Where the nearest tire shop always is."""
DISTANCES = frozenset(
    frozenset(pair)
    for pair in (
        ("Rivermist", "Stonebrook"),
        ("Maplecrest", "Silverpine"),
        ("Shadowridge", "Sunset Valley"),
        ("Oakendale", "Willowbend"),
        ("Crescent Hollow", "Autumnville"),
        ("San Francisco", "Rivermist"),
        ("Silverpine", "Oakendale"),
        ("San Francisco", "Silverpine"),
        ("Stonebrook", "San Francisco"),
    )
)
"""City pairs whose distance the vehicle knows."""

AIRPORTS: dict[str, tuple[str, ...]] = {
    "RMS": ("Rivermist",),
    "SBK": ("Stonebrook",),
    "MPC": ("Maplecrest",),
    "SVP": ("Silverpine",),
    "SHD": ("Shadowridge",),
    "SSV": ("Sunset Valley",),
    "OKD": ("Oakendale",),
    "WLB": ("Willowbend",),
    "CRH": ("Crescent Hollow",),
    "ATV": ("Autumnville",),
    "PHV": ("Pinehaven",),
    "GFD": ("Greenfield",),
    "SFO": ("San Francisco", "SF"),
    "LAX": ("Los Angeles", "LA"),
    "JFK": ("New York", "New York City", "NYC"),
    "ORD": ("Chicago",),
    "BOS": ("Boston",),
    "LHR": ("London", "London Heathrow"),
    "CDG": ("Paris", "Paris Charles de Gaulle"),
    "PEK": ("Beijing", "Beijing Capital"),
    "HKG": ("Hong Kong",),
    "CIA": ("Rome",),
    "HND": ("Tokyo",),
}
"""City names by airport code; the first is the one the simulator resolves."""
_ORDERED = ("RMS", "SBK", "MPC", "SVP", "SHD", "SSV", "OKD", "WLB", "CRH", "ATV", "PHV", "GFD")
_FROM_ANYWHERE = ("SFO", "LAX", "JFK", "ORD", "BOS")
ROUTES = frozenset(
    {(start, end) for start in _FROM_ANYWHERE for end in _ORDERED}
    | {(start, end) for index, start in enumerate(_ORDERED) for end in _ORDERED[index + 1 :]}
    | {
        ("SFO", "LAX"),
        ("SFO", "JFK"),
        ("SFO", "ORD"),
        ("SFO", "BOS"),
        ("SFO", "CIA"),
        ("LAX", "SFO"),
        ("LAX", "JFK"),
        ("LAX", "ORD"),
        ("LAX", "BOS"),
        ("LAX", "HND"),
        ("JFK", "ORD"),
        ("JFK", "BOS"),
        ("JFK", "LAX"),
        ("JFK", "HND"),
        ("JFK", "PVG"),
        ("JFK", "PEK"),
        ("ORD", "LAX"),
        ("ORD", "BOS"),
        ("RMS", "BOS"),
        ("RMS", "JFK"),
        ("RMS", "LAX"),
        ("CRH", "SFO"),
        ("CRH", "RMS"),
        ("CRH", "HKG"),
        ("CRH", "JFK"),
        ("LHR", "CDG"),
        ("OKD", "LAX"),
    }
)
"""Airport pairs that have a fare."""

CURRENCIES = ("RMB", "EUR", "JPY", "GBP", "CAD", "AUD", "INR", "RUB", "BRL", "MXN")
"""Currencies with a rate against USD."""

DEFAULT_CONTACTS = {"Alice": "USR001", "Bob": "USR002", "Catherine": "USR003", "Daniel": "USR004"}
DEFAULT_INBOX = (
    {"USR002": "My name is Alice. I want to connect."},
    {"USR003": "Could you upload the file?"},
    {"USR004": "Could you upload the file?"},
)
"""Contacts and messages of a workspace that a task does not describe."""

STATE_QUANTITIES: dict[str, tuple[float, float]] = {
    "price": (0.8, 1.1),
    "MA(5)": (0.8, 1.1),
    "MA(20)": (0.8, 1.1),
    "volume": (0.7, 1.4),
    "balance": (1.0, 1.5),
    "fuelLevel": (0.7, 1.2),
    "batteryVoltage": (0.97, 1.03),
    "acTemperature": (0.9, 1.1),
    "humidityLevel": (0.8, 1.2),
    "frontLeftTirePressure": (0.97, 1.02),
    "frontRightTirePressure": (0.97, 1.02),
    "rearLeftTirePressure": (0.97, 1.02),
    "rearRightTirePressure": (0.97, 1.02),
    "distanceToNextVehicle": (0.7, 1.3),
    "token_expires_in": (0.5, 2.0),
    "cost": (0.8, 1.2),
    "travel_cost": (0.8, 1.2),
}
"""By which factor a state field may change."""
