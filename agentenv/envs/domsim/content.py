"""Names, things and sentences for the simulated desktop, drawn without repetition."""

from random import Random

FIRST_NAMES = (
    "Ada", "Bruno", "Clara", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Keiko", "Liam", "Mira", "Nadia",
    "Oskar", "Priya", "Quinn", "Rosa", "Sven", "Tara", "Umar", "Vera", "Wanda", "Yusuf",
)  # fmt: skip
LAST_NAMES = (
    "Abbott", "Berg", "Costa", "Dahl", "Evans", "Fischer", "Grant", "Hansen", "Ito", "Jansen", "Kaya", "Lopez", "Moreau",
    "Novak", "Okafor", "Petrov", "Rossi", "Silva", "Tanaka", "Urban", "Vogel", "Weber", "Young", "Zhang",
)  # fmt: skip
SUBJECTS = (
    "Quarterly report", "Lunch on Friday", "Invoice overdue", "Trip to Lisbon", "Garden party", "New printer", "Choir",
    "Lost umbrella", "Budget review", "Book club", "Parking permit", "Team photo", "Piano lessons", "Server upgrade",
    "Cake recipe", "Train tickets",
)  # fmt: skip
SENTENCES = (
    "Sounds good to me.", "I will be ten minutes late.", "Please send the final version.", "Thank you for the answer.",
    "Let us talk about it tomorrow.", "I have to cancel this time.", "The papers are on your desk.", "See you there.",
    "Could you bring the keys?", "We need two more chairs.", "The meeting moved to room 12.", "I agree with the plan.",
)  # fmt: skip
THINGS = {
    "Kitchen": ("Teapot", "Bread knife", "Copper pan", "Salad bowl", "Egg timer", "Apron"),
    "Garden": ("Watering can", "Rake", "Bird feeder", "Flower pot", "Garden gnome", "Seed mix"),
    "Office": ("Desk lamp", "Stapler", "Fountain pen", "Paper tray", "Wall clock", "Notebook"),
    "Sports": ("Tennis racket", "Yoga mat", "Bike bell", "Swim goggles", "Jump rope", "Football"),
}
STREETS = ("Oak Street", "Mill Lane", "Harbour Road", "Station Square", "Hill View", "Castle Walk")
EVENTS = (
    "Dentist", "Board meeting", "Yoga class", "Parents evening", "Car inspection", "Concert", "Flea market", "Haircut",
    "Job interview", "Museum visit", "Chess club", "Vet appointment",
)  # fmt: skip
FILES = (
    "budget.xlsx", "holiday.jpg", "thesis.pdf", "recipe.txt", "contract.pdf", "song.mp3", "slides.pptx", "map.png",
    "letter.docx", "invoice.pdf", "backup.zip", "notes.md",
)  # fmt: skip
TITLES = (
    "Shopping", "Ideas", "Wi-Fi at work", "Packing list", "Birthday gifts", "Reading list", "House rules", "Running plan",
    "Passport renewal", "Movie night",
)  # fmt: skip
CHORES = (
    "Buy milk", "Water the plants", "Call the bank", "Fix the bike", "Return the books", "Pay the rent", "Clean the oven",
    "Charge the camera", "Book a table", "Post the letter",
)  # fmt: skip


def people(rng: Random, n: int) -> list[str]:
    """Draws ``n`` names in which no first name and no last name occurs twice."""
    return [f"{a} {b}" for a, b in zip(rng.sample(FIRST_NAMES, n), rng.sample(LAST_NAMES, n), strict=True)]


def email_of(name: str) -> str:
    """Returns the email address of a person."""
    return f"{name.lower().replace(' ', '.')}@example.org"


def phone(rng: Random) -> str:
    """Draws a telephone number."""
    return f"555-{rng.randrange(10_000):04d}"


def code(rng: Random) -> str:
    """Draws six digits."""
    return f"{rng.randrange(1_000_000):06d}"


def address(rng: Random) -> str:
    """Draws a street with a house number."""
    return f"{rng.choice(STREETS)} {rng.randrange(1, 99)}"


def money(cents: int) -> str:
    """Formats cents as ``$12.50``."""
    return f"${cents // 100}.{cents % 100:02d}"
