"""The templates of generate.py: what the problems are about and how they are told.

A template, any function of `r`, draws from this source and returns a text and the answer. The text
is a question, an empty line and its program, indented as in the function that they go into; what
the last line computes is the result. The answer is worked out by itself, so that the program can be
checked against it.

Counts come out whole and are two or more, so that plurals hold; money comes out in quarters of a
dollar, so that floats are exact. Numbers that the program ignores come from r.aside or r.about.
"""

from fractions import Fraction
from inspect import isfunction, signature
from math import gcd
from typing import NamedTuple

HELD_OUT = {}  # {name: template}; SEEN, of all others, is at the end


class Person:
    """Prints as the name; `var` is the name in a variable."""

    def __init__(self, name, he, his):
        self.name, self.var = name, name.lower()
        self.he, self.He, self.his, self.His = he, he.capitalize(), his, his.capitalize()

    def __str__(self):
        return self.name


class Thing:
    """Prints as its plural, in a variable too."""

    def __init__(self, one, many=""):
        self.one, self.many = one, many or one + "s"
        self.a = f"an {one}" if one[0] in "aeiou" else f"a {one}"

    def __str__(self):
        return self.many


class Share(NamedTuple):
    words: str
    code: str  # what the program does to the whole
    top: int
    bottom: int


def people(he, his, names):
    return tuple(Person(name, he, his) for name in names.split())


def things(words):
    """`pear peach/peaches` -> Things; a plural that is not spelled out ends in s."""
    return tuple(Thing(*word.split("/")) for word in words.split())


WOMEN = people(
    "she",
    "her",
    "Alice Amy Anna Beth Clara Emily Emma Eva Grace Hannah Jane Julia Kate Laura Lily Lisa Lucy "
    "Maria Mary Mia Nina Olivia Rachel Rosa Sarah Sophia",
)
MEN = people(
    "he",
    "his",
    "Adam Alex Ben Carlos Daniel David Eric Ethan Frank George Henry Jack James John Kevin Leo "
    "Lucas Mark Max Mike Noah Oscar Paul Peter Sam Tom",
)
PEOPLE = WOMEN + MEN

FRUIT = things("apple orange pear peach/peaches banana lemon plum mango/mangoes kiwi")
BAKED = things("cookie muffin cupcake donut pie bagel pretzel brownie waffle roll")
SUPPLIES = things("pencil pen notebook eraser marker crayon folder book brush/brushes ruler")
TREASURES = things("marble stamp coin shell bead card sticker button badge postcard")
TOYS = things("doll ball kite puzzle balloon robot whistle drum")
FLOWERS = things("rose tulip lily/lilies daisy/daisies orchid")
CLOTHES = things("shirt hat jacket scarf/scarves sweater dress/dresses belt coat")
DEAR = things("bike lamp tent chair table phone camera tablet guitar watch/watches desk radio")
CROPS = things("melon tomato/tomatoes pepper pumpkin cucumber potato/potatoes")
SMALL = FRUIT + BAKED + SUPPLIES + TOYS + FLOWERS
COUNTED = FRUIT + BAKED + SUPPLIES + TREASURES + TOYS

SHARES = (
    Share("half", "/ 2", 1, 2),
    Share("a third", "/ 3", 1, 3),
    Share("a quarter", "/ 4", 1, 4),
    Share("a fifth", "/ 5", 1, 5),
    Share("2/3", "* 2 / 3", 2, 3),
    Share("3/4", "* 3 / 4", 3, 4),
    Share("2/5", "* 2 / 5", 2, 5),
    Share("3/5", "* 3 / 5", 3, 5),
)
RATIOS = tuple((a, b) for a in range(1, 10) for b in range(1, 10) if a != b and gcd(a, b) == 1)
TIMES = ("twice", 2), ("3 times", 3), ("4 times", 4), ("5 times", 5), ("6 times", 6)


def held_out(template):
    HELD_OUT[template.__name__] = template
    return template


# -- buying and selling --------------------------------------------------------------------------


def two_goods(r):
    who, (a, b) = r.person(), r.two(SMALL)
    n, m, p, q = r.number(2, 15), r.number(2, 15), r.price(2, 9), r.price(2, 9)
    ask = r.pick("How much does {} spend in total?", "What is the total cost?").format(who.he)
    text = f"""
    {who} buys {n} {a} for ${p} each and {m} {b} for ${q} each.{r.about(who.He)}
    {ask}

    {a}_cost = {n} * {p}
    {b}_cost = {m} * {q}
    total_cost = {a}_cost + {b}_cost
    """
    return text, n * p + m * q


def change(r):
    who, thing = r.person(), r.pick(*SMALL)
    n, p = r.number(2, 9), r.price(2, 9)
    bill = r.pick(*(bill for bill in (20, 50, 100) if bill > n * p))
    buys = r.pick(
        f"{who} buys {n} {thing} for ${p} each.",
        f"A store sells {thing} for ${p} each. {who} takes {n} of them.",
    )
    text = f"""
    {buys}{r.about(who.He)}
    {who.He} pays with ${bill}.
    How much change does {who.he} get?

    {thing} = {n}
    price = {p}
    cost = {thing} * price
    change = {bill} - cost
    """
    return text, bill - n * p


def discount(r):
    who, thing, n = r.person(), r.pick(*CLOTHES, *DEAR), r.number(2, 6)
    price, percent = r.number(20, 200, 10), r.number(5, 60, 5)
    sale = r.pick(
        f"{thing.a.capitalize()} costs ${price}, but today it is {percent}% off.",
        f"A shop sells {thing} for ${price} each and gives a {percent}% discount.",
    )
    text = f"""
    {sale}
    {who} buys {n} {thing}.{r.about(who.He)}
    {r.pick(f"How much does {who.he} pay", "How much is that")}?

    price = {price}
    discount = price * {percent} / 100
    sale_price = price - discount
    total_cost = sale_price * {n}
    """
    return text, n * price * (100 - percent) / 100


def tip(r):
    who, people, k = r.person(), r.number(3, 9), r.number(2, 9)
    bill, percent = 10 * people * k, r.pick(5, 10, 15, 20, 25)
    split = r.pick("If they share the total equally, how", "They share the total equally. How")
    text = f"""
    {who} and {people - 1} friends have {r.pick("lunch", "dinner", "breakfast")} together.
    The bill is ${bill} and they leave a {percent}% tip.
    {split} much does each person pay?

    bill = {bill}
    tip = bill * {percent} / 100
    total = bill + tip
    people = {people - 1} + 1
    result = total / people
    """
    return text, k * (100 + percent) / 10


def profit(r):
    who, thing, n = r.person(), r.pick(*SMALL), r.number(6, 60)
    cost, price = r.price(2, 7), r.price(8, 15)
    ask = r.pick(f"How much profit does {who.he} make?", f"What is {who.his} profit?")
    text = f"""
    {who} buys {n} {thing} for ${cost} each and sells them all for ${price} each.{r.about(who.He)}
    {ask}

    {thing} = {n}
    profit_each = {price} - {cost}
    profit = {thing} * profit_each
    """
    return text, n * (price - cost)


def two_days_of_sales(r):
    who, thing, price = r.person(), r.pick(*SMALL), r.price(2, 9)
    n, m = r.number(5, 60), r.number(5, 60)
    first, second = r.pick(("Friday", "Saturday"), ("Saturday", "Sunday"), ("Monday", "Tuesday"))
    opens = r.aside(f"The shop is open for {r.number(6, 12)} hours a day.")
    text = f"""
    {who} sells {n} {thing} on {first} and {m} on {second}.
    Each {thing.one} costs ${price}.{opens}
    How much money does {who.he} make in the two days?

    sold = {n} + {m}
    price = {price}
    money = sold * price
    """
    return text, (n + m) * price


def savings(r):
    who, save, weeks = r.person(), r.number(12, 60), r.number(6, 20)
    thing, spent = r.pick(*CLOTHES), r.number(15, 60)
    keep = r.pick(f"{who} saves ${save} every week.", f"Every week {who} puts ${save} in a jar.")
    text = f"""
    {keep}{r.about(who.He)}
    After {weeks} weeks {who.he} spends ${spent} on {thing.a}.
    How much money does {who.he} have left?

    saved = {save} * {weeks}
    spent = {spent}
    money_left = saved - spent
    """
    return text, save * weeks - spent


def saving_for(r):
    who, thing, weeks = r.person(), r.pick(*DEAR), r.number(4, 20)
    save, have = r.number(8, 40), r.number(20, 200)
    cost = have + save * weeks
    ask = r.pick("How many weeks does {} need to save?", "After how many weeks can {} buy it?")
    text = f"""
    {who} wants to buy {thing.a} that costs ${cost}.
    {who.He} has ${have} and saves ${save} a week.{r.about(who.He)}
    {ask.format(who.he)}

    cost = {cost}
    money_needed = cost - {have}
    weeks = money_needed / {save}
    """
    return text, weeks


def wage(r):
    who, pay = r.person(), r.price(10, 40)
    hours, days, weeks = r.number(3, 9), r.number(3, 6), r.number(2, 12)
    earn = r.pick(
        f"{who} earns ${pay} an hour and works {hours} hours a day, {days} days a week.",
        f"{who} works {hours} hours a day for {days} days a week. The pay is ${pay} an hour.",
    )
    text = f"""
    {earn}{r.about(who.He)}
    How much does {who.he} earn in {weeks} weeks?

    weekly_hours = {hours} * {days}
    weekly_pay = weekly_hours * {pay}
    total_pay = weekly_pay * {weeks}
    """
    return text, pay * hours * days * weeks


def overtime(r):
    who, normal, extra = r.person(), r.number(30, 40), r.number(2, 15)
    pay, more = r.number(10, 24), r.number(25, 40)
    later = r.pick(
        f"For each hour after that {who.he} earns ${more}.",
        f"After that the pay is ${more} an hour.",
    )
    text = f"""
    {who} earns ${pay} an hour for the first {normal} hours of a week.
    {later}
    How much does {who.he} earn in a week with {normal + extra} hours of work?

    normal_pay = {normal} * {pay}
    extra_hours = {normal + extra} - {normal}
    extra_pay = extra_hours * {more}
    result = normal_pay + extra_pay
    """
    return text, normal * pay + extra * more


def coupon(r):
    who, thing, off = r.person(), r.pick(*SMALL), r.number(2, 8)
    n, price = r.number(3, 15), r.price(3, 9)
    takes = r.pick(f"{who.He} uses a coupon for", "A coupon takes")
    text = f"""
    {who} {r.pick("picks", "takes", "buys")} {n} {thing} that cost ${price} each.{r.about(who.He)}
    {takes} ${off} off the whole purchase.
    How much does {who.he} pay?

    {thing}_cost = {n} * {price}
    coupon = {off}
    total_cost = {thing}_cost - coupon
    """
    return text, n * price - off


def pack_or_single(r):
    who, thing = r.person(), r.pick(*SUPPLIES, *TOYS)
    packs, size, single = r.number(2, 9), r.number(4, 12), r.number(3, 8)
    pack_price = size * single - r.number(2, 2 * size)
    text = f"""
    A pack of {size} {thing} costs ${pack_price}, and a single {thing.one} costs ${single}.
    {who} needs {packs * size} {thing}.{r.about(who.He)}
    How much does {who.he} save by buying packs?

    packs = {packs * size} / {size}
    pack_cost = packs * {pack_price}
    single_cost = {packs * size} * {single}
    saved = single_cost - pack_cost
    """
    return text, packs * (size * single - pack_price)


def tickets(r):
    adult, child = r.price(11, 25), r.price(4, 10)
    n, m = r.number(2, 30), r.number(2, 60)
    place = r.pick("museum", "zoo", "circus", "theater", "park", "concert")
    text = f"""
    Tickets for the {place} cost ${adult} for adults and ${child} for children.
    A group of {n} adults and {m} children visits.
    {r.pick("How much do they pay?", "What is the total cost of their tickets?")}

    adult_cost = {n} * {adult}
    child_cost = {m} * {child}
    total_cost = adult_cost + child_cost
    """
    return text, n * adult + m * child


def installments(r):
    who, thing = r.person(), r.pick(*DEAR)
    first, months, each = r.number(20, 150, 5), r.number(3, 12), r.number(12, 60)
    price = first + months * each
    text = f"""
    {who} buys {thing.a} for ${price}.{r.about(who.He)}
    {who.He} pays ${first} now and the rest in {months} equal monthly payments.
    {r.pick("How much is each payment", f"What does {who.he} pay each month")}?

    price = {price}
    rest = price - {first}
    payment = rest / {months}
    """
    return text, each


def taxi(r):
    who, start, mile = r.person(), r.price(2, 6), r.price(2, 4)
    miles, tip = r.number(3, 30), r.number(2, 10)
    minutes = r.aside(f"The ride takes {r.number(8, 50)} minutes.")
    text = f"""
    A taxi charges ${start} for every ride plus ${mile} per mile.
    {who} {r.pick("rides", "travels")} {miles} miles.{minutes}
    {who.He} gives the driver ${tip} as a tip.
    How much does {who.he} pay in all?

    distance_cost = {miles} * {mile}
    ride_cost = {start} + distance_cost
    total_cost = ride_cost + {tip}
    """
    return text, start + miles * mile + tip


def fundraiser(r):
    people, each, short = r.number(12, 60), r.price(5, 30), r.number(20, 300)
    goal = int(people * each) + short
    where = r.pick("school", "club", "church", "team", "library")
    old = r.aside(f"The {where} is {r.number(5, 90)} years old.")
    text = f"""
    A {where} wants to raise ${goal}.{old}
    So far {people} people have given ${each} each{r.pick("", " on average")}.
    How much more money does it need?

    raised = {people} * {each}
    goal = {goal}
    money_needed = goal - raised
    """
    return text, goal - people * each


def yearly_plan(r):
    who, month, years = r.person(), r.number(8, 60), r.number(2, 6)
    year = 12 * month - r.number(5, 4 * month)
    what = r.pick("gym", "music school", "phone company", "sports club", "swim club")
    text = f"""
    A {what} charges ${month} a month or ${year} a year.
    {who} stays for {years} years.{r.about(who.He)}
    How much does {who.he} save by paying yearly?

    months = {years} * 12
    monthly_cost = months * {month}
    yearly_cost = {years} * {year}
    saved = monthly_cost - yearly_cost
    """
    return text, years * (12 * month - year)


# -- sharing, parts and leftovers ----------------------------------------------------------------


def share_equally(r):
    who, thing, friends = r.person(), r.pick(*COUNTED), r.number(3, 9)
    each, bags = r.number(2, 15), r.number(2, 9)
    size = friends * each
    text = f"""
    {who} has {bags} {r.pick("bags", "boxes", "packs")} with {size} {thing} each.{r.about(who.He)}
    {who.He} shares all of them equally among {friends} friends.
    How many {thing} does each friend get?

    total_{thing} = {bags} * {size}
    friends = {friends}
    {thing}_each = total_{thing} / friends
    """
    return text, bags * each


def leftover(r):
    who, thing, size, boxes = r.person(), r.pick(*COUNTED), r.number(4, 12), r.number(3, 20)
    n = boxes * size + r.number(2, size - 1)
    box = r.pick("box", "bag", "basket", "tray")
    many = "boxes" if box == "box" else box + "s"
    text = f"""
    {who} has {n} {thing} and puts {size} of them in each {box}.{r.about(who.He)}
    {who.He} fills as many {many} as possible.
    How many {thing} are left over?

    {thing} = {n}
    full_{many} = {thing} // {size}
    packed = full_{many} * {size}
    {thing}_left = {thing} - packed
    """
    return text, n % size


def give_a_share(r):
    (who, other), thing, share = r.two(PEOPLE), r.pick(*COUNTED), r.share()
    n = share.bottom * r.number(4, 20)
    given = n * share.top // share.bottom
    lost = r.number(2, max(2, n - given - 2))
    text = f"""
    {who} has {n} {thing}.{r.about(who.He)}
    {who.He} gives {share.words} of them to {other} and {r.pick("throws away", "sells")} {lost}.
    How many {thing} does {who} have left?

    {thing} = {n}
    given = {thing} {share.code}
    rest = {thing} - given
    {thing}_left = rest - {lost}
    """
    return text, n - given - lost


def share_of_the_rest(r):
    (who, other), thing, first, second = r.two(PEOPLE), r.pick(*COUNTED), r.share(), r.share()
    n = first.bottom * second.bottom * r.number(2, 12)
    rest = n - n * first.top // first.bottom
    text = f"""
    {who} {r.pick("has", "buys", "collects")} {n} {thing}.{r.about(who.He)}
    {who.He} gives {first.words} of them to {other} and {second.words} of the rest to a friend.
    How many {thing} does {who} keep?

    given = {n} {first.code}
    rest = {n} - given
    friend = rest {second.code}
    {thing}_left = rest - friend
    """
    return text, rest - rest * second.top // second.bottom


def percent_of_a_group(r):
    some, percent = r.share(), r.number(15, 85, 5)
    n = 20 * some.bottom * r.number(1, 12)
    place, people = r.pick(("school", "students"), ("club", "members"), ("camp", "children"))
    a, b = r.two(("girls", "boys"))
    do, doers = r.pick(("swim", "swimmers"), ("dance", "dancers"), ("sing", "singers"))
    text = f"""
    A {place} has {n} {people}, and {percent}% of them are {a}.
    The others are {b}.
    If {some.words} of the {b} can {do}, how many {b} can {do}?

    {a} = {n} * {percent} / 100
    {b} = {n} - {a}
    {doers} = {b} {some.code}
    """
    return text, n * (100 - percent) // 100 * some.top // some.bottom


def buy_and_give(r):
    (who, other), thing = r.two(PEOPLE), r.pick(*COUNTED)
    n, packs, size = r.number(5, 60), r.number(2, 9), r.number(3, 12)
    box, given = r.pick("packs", "boxes", "bags"), r.number(2, n + packs * size - 2)
    text = f"""
    {who} has {n} {thing} and buys {packs} {box} of {size} {thing}.{r.about(who.He)}
    Then {who.he} gives {given} {thing} to {other}.
    How many {thing} {r.pick(f"does {who} have now", "are left")}?

    bought = {packs} * {size}
    total_{thing} = {n} + bought
    {thing}_left = total_{thing} - {given}
    """
    return text, n + packs * size - given


def empty_seats(r):
    rows, seats = r.number(8, 40), r.number(8, 30)
    empty, adults = r.number(5, rows * seats // 3), r.number(5, rows * seats // 2)
    place = r.pick("theater", "circus", "hall", "tent", "church")
    text = f"""
    A {place} has {rows} rows of {seats} seats.
    Tonight {empty} seats are empty and {adults} people are adults.
    {r.pick("The rest are children.", "All the others are children.")} How many children are there?

    seats = {rows} * {seats}
    people = seats - {empty}
    children = people - {adults}
    """
    return text, rows * seats - empty - adults


def pizza(r):
    who, slices, people, each = r.person(), r.pick(6, 8, 10, 12), r.number(4, 20), r.number(2, 4)
    pizzas = people * each // slices + r.number(2, 4)
    eaters = r.pick(f"There are {people} people, and each of them", f"Each of the {people} people")
    text = f"""
    {who} orders {pizzas} pizzas for a party, and each pizza has {slices} slices.{r.about(who.He)}
    {eaters} eats {each} slices.
    How many slices are left?

    slices = {pizzas} * {slices}
    eaten = {people} * {each}
    slices_left = slices - eaten
    """
    return text, pizzas * slices - people * each


def wilted(r):
    flower, bunches, size = r.pick(*FLOWERS), r.number(3, 12), r.number(10, 30)
    who, vases = r.person(), r.number(3, 9)
    each = (bunches * size - r.number(2, 9)) // vases
    gone = bunches * size - each * vases
    text = f"""
    {who} buys {bunches} bunches of {size} {flower}.{r.about(who.He)}
    {r.pick("Sadly", "Later", "Soon")} {gone} of them wilt.
    {who} puts the rest equally in {vases} vases.
    How many {flower} are in each vase?

    {flower} = {bunches} * {size}
    fresh_{flower} = {flower} - {gone}
    {flower}_each = fresh_{flower} / {vases}
    """
    return text, each


# -- comparing -----------------------------------------------------------------------------------


def times_as_many(r):
    (a, b), thing, (words, times) = r.two(PEOPLE), r.pick(*COUNTED), r.pick(*TIMES)
    n, more = r.number(3, 60), r.number(2, 40)
    text = f"""
    {a} has {n} {thing}, and {b} has {words} as many.{r.about(a)}
    Then {b} {r.pick("finds", "buys", "gets")} {more} more.
    How many {thing} do they have together?

    {a.var}_{thing} = {n}
    {b.var}_{thing} = {a.var}_{thing} * {times} + {more}
    total_{thing} = {a.var}_{thing} + {b.var}_{thing}
    """
    return text, n + n * times + more


def more_and_fewer(r):
    (a, b), (c, _), thing = r.two(WOMEN), r.two(MEN), r.pick(*COUNTED)
    n, more = r.number(10, 80), r.number(3, 40)
    fewer = r.number(2, n + more - 2)
    text = f"""
    {a} has {n} {thing}.
    {b} has {more} more {thing} than {a}, and {c} has {fewer} fewer than {b}.{r.about(b)}
    {r.pick(f"How many {thing} do the three have together", f"How many {thing} is that in total")}?

    {b.var} = {n} + {more}
    {c.var} = {b.var} - {fewer}
    total_{thing} = {n} + {b.var} + {c.var}
    """
    return text, n + 2 * (n + more) - fewer


def future_age(r):
    (a, b), (words, times) = r.two(PEOPLE), r.pick(*TIMES)
    age, years = r.number(4, 72 // times), r.number(2, 20)
    when = r.pick(
        f"How old will {b} be in {years} years?", f"In {years} years, how old will {b} be?"
    )
    live = r.aside(f"They live {r.number(2, 30)} miles apart.")
    text = f"""
    {a} is {age} years old, and {b} is {words} as old.{live}
    {when}

    {a.var}_age = {age}
    {b.var}_age = {a.var}_age * {times}
    future_age = {b.var}_age + {years}
    """
    return text, age * times + years


def sum_of_ages(r):
    (a, b), age, older, years = r.two(PEOPLE), r.number(5, 50), r.number(2, 30), r.number(2, 15)
    what = r.pick("What will be the sum of their ages", "How old will they be together")
    text = f"""
    {b} is {age} years old and {a} is {older} years older.
    {what} in {years} years?

    {b.var}_age = {age} + {years}
    {a.var}_age = {b.var}_age + {older}
    total_age = {b.var}_age + {a.var}_age
    """
    return text, 2 * age + older + 2 * years


def daily_difference(r):
    (a, b), days, less = r.two(PEOPLE), r.number(5, 30), r.number(5, 40)
    more = less + r.number(2, 30)
    do, what = r.pick(("read", "pages"), ("run", "laps"), ("bake", "rolls"), ("pick", "apples"))
    text = f"""
    {a} can {do} {more} {what} a day, and {b} can {do} {less} {what} a day.{r.about(b)}
    How many more {what} than {b} does {a} {do} in {days} days?

    {a.var}_{what} = {more} * {days}
    {b.var}_{what} = {less} * {days}
    difference = {a.var}_{what} - {b.var}_{what}
    """
    return text, days * (more - less)


def ratio(r):
    (a, b), (left, right), each = r.two(PEOPLE), r.pick(*RATIOS), r.number(3, 60)
    total = (left + right) * each
    thing = r.pick("", *TREASURES)
    what = f"{total} {thing}" if thing else f"${total}"
    much = f"many {thing}" if thing else "much money"
    text = f"""
    {a} and {b} share {what} in the ratio {left}:{right}.{r.about(b)}
    {r.pick(f"What is {b}'s share", f"How {much} does {b} get")}?

    parts = {left} + {right}
    part = {total} / parts
    {b.var}_share = part * {right}
    """
    return text, right * each


def total_and_difference(r):
    (a, b), thing, n, more = r.two(PEOPLE), r.pick(*COUNTED), r.number(5, 200), r.number(2, 80)
    text = f"""
    {a} and {b} have {2 * n + more} {thing} together.{r.about(a)}
    {r.pick(f"{a} has {more} more than {b}.", f"{b} has {more} fewer than {a}.")}
    How many {thing} does {b} have?

    total_{thing} = {2 * n + more}
    twice_{b.var} = total_{thing} - {more}
    {b.var}_{thing} = twice_{b.var} / 2
    """
    return text, n


def total_and_times(r):
    (a, b), thing = r.two(PEOPLE), r.pick(*COUNTED)
    (words, times), n = r.pick(*TIMES), r.number(4, 90)
    text = f"""
    {a} has {words} as many {thing} as {b}.{r.about(b)}
    Together they have {n * times + n} {r.pick(thing, "of them")}.
    How many {thing} does {a} have?

    parts = {times} + 1
    {b.var}_{thing} = {n * times + n} / parts
    {a.var}_{thing} = {b.var}_{thing} * {times}
    """
    return text, n * times


# -- speed, work and time ------------------------------------------------------------------------


def two_legs(r):
    who, (h, k), fast, slow = r.person(), r.two(range(2, 9)), r.number(50, 80), r.number(20, 49)
    v, w = r.pick((fast, slow), (slow, fast))
    unit, moves = r.pick("miles", "kilometers"), r.pick("drives", "rides", "travels")
    text = f"""
    {who} {moves} for {h} hours at {v} {unit} per hour.{r.about(who.He)}
    Then {who.he} goes on for {k} hours at {w} {unit} per hour.
    {r.pick(f"How many {unit} is that in all", f"What is the whole distance in {unit}")}?

    first_part = {h} * {v}
    second_part = {k} * {w}
    distance = first_part + second_part
    """
    return text, h * v + k * w


def there_and_back(r):
    who, speed, half_hours, days = r.person(), r.number(20, 60, 2), r.number(1, 4), r.number(2, 6)
    miles = speed * half_hours // 2
    place = r.pick("work", "school", "the market", "the library", "the club")
    old = r.aside(f"{who.His} car is {r.number(2, 15)} years old.")
    text = f"""
    {who} lives {miles} miles from {place} and drives there and back {days} days a week.
    {who.His} speed is {speed} miles per hour.{old}
    How many hours {r.pick(f"does {who.he} drive", "is that")} in a week?

    daily_miles = {miles} * 2
    weekly_miles = daily_miles * {days}
    hours = weekly_miles / {speed}
    """
    return text, Fraction(2 * miles * days, speed)


def fuel(r):
    who, per, gallons, price = r.person(), r.number(18, 45), r.number(3, 18), r.price(3, 5)
    thing = r.pick("car", "van", "truck")
    holds = r.aside(f"The tank holds {r.number(19, 30)} gallons.")
    pays = r.pick(f"{who} pay for gas on", "the gas cost for")
    text = f"""
    {who}'s {thing} goes {per} miles on a gallon of gas.{holds}
    Gas costs ${price} per gallon.
    How much does {pays} a trip of {per * gallons} miles?

    miles = {per * gallons}
    gallons = miles / {per}
    gas_cost = gallons * {price}
    """
    return text, gallons * price


def pages_left(r):
    who, a, days = r.person(), r.number(5, 40), r.number(2, 12)
    b, more = r.number(8, 50), r.number(2, 14)
    text = f"""
    {who} is reading a book of {a * days + b * more} pages.
    For {days} days {who.he} reads {a} pages a day.
    Then {who.he} reads {b} pages a day.
    How many more days does {r.pick(f"{who.he} need", "the book last")}?

    pages_read = {days} * {a}
    pages_left = {a * days + b * more} - pages_read
    days = pages_left / {b}
    """
    return text, more


def faulty_pieces(r):
    an_hour, hours, days = 20 * r.number(1, 15), r.number(4, 12), r.number(2, 7)
    percent, thing = r.pick(5, 10, 15, 20), r.pick(*SUPPLIES, *TOYS, *CLOTHES)
    text = f"""
    A factory makes {an_hour} {thing} an hour and runs {hours} hours a day.
    {r.pick(f"Of the {thing}, {percent}%", f"About {percent}% of the {thing}")} have faults.
    How many good {thing} does it make in {days} days?

    {thing} = {an_hour} * {hours} * {days}
    faulty = {thing} * {percent} / 100
    good_{thing} = {thing} - faulty
    """
    return text, an_hour * hours * days * (100 - percent) // 100


def two_machines(r):
    thing, a, b, hours = r.pick(*BAKED, *TOYS), r.number(5, 60), r.number(5, 60), r.number(2, 12)
    first, second = r.pick(("An old", "a new"), ("A small", "a big"), ("A blue", "a red"))
    total = (a + b) * hours
    costs = r.aside(f"A machine costs ${r.number(200, 900, 5)}.")
    text = f"""
    {first} machine makes {a} {thing} an hour, and {second} one makes {b} {thing} an hour.{costs}
    How many hours do they need to make {total} {thing} together?

    {thing}_per_hour = {a} + {b}
    {thing} = {total}
    hours = {thing} / {thing}_per_hour
    """
    return text, hours


def crew(r):
    job = r.pick("build a wall", "paint a house", "dig a canal", "fix a road", "build a school")
    who, team, other = r.pick("workers", "people", "men", "women"), r.number(2, 30), r.number(2, 30)
    days, hours = other * r.number(1, 9) + other, r.number(5, 10)
    text = f"""
    It takes {team} {who} {days} days to {job}.{r.aside(f"They work {hours} hours a day.")}
    {r.pick("At the same speed", "If all work equally fast")}, how many days do {other} {who} need?

    work = {team} * {days}
    days = work / {other}
    """
    return text, team * days // other


def tank(r):
    minutes, leak, gain = r.number(5, 60), r.number(2, 9), r.number(3, 20)
    have = r.number(10, 150)
    full = have + minutes * gain
    what, unit = r.pick("tank", "pool", "pond"), r.pick("liters", "gallons")
    ask = r.pick(
        f"How many minutes does it take to fill the {what}?", "After how many minutes is it full?"
    )
    text = f"""
    A {what} holds {full} {unit} and already has {have} {unit} of water in it.
    A pipe adds {gain + leak} {unit} a minute, but a leak loses {leak} {unit} a minute.
    {ask}

    water_needed = {full} - {have}
    gain = {gain + leak} - {leak}
    minutes = water_needed / gain
    """
    return text, minutes


def laps(r):
    who, length, n, days = r.person(), r.number(200, 800, 50), r.number(2, 12), r.number(2, 7)
    does, where = r.pick(("runs", "track"), ("walks", "path"), ("rides", "road"))
    text = f"""
    Every day {who} {does} {n} laps on a {where} that is {length} meters long.{r.about(who.He)}
    How many meters {r.pick(f"does {who.he} cover", "is that")} in {days} days?

    laps = {n} * {days}
    meters = laps * {length}
    """
    return text, n * length * days


def practice(r):
    who, minutes, days, weeks = r.person(), r.number(15, 90, 15), r.number(2, 6), r.number(2, 12)
    what = r.pick("the piano", "the guitar", "the drums", "the violin", "the flute")
    pay = r.aside(f"A lesson costs ${r.number(12, 50)}.")
    text = f"""
    {who} practices {what} for {minutes} minutes a day, {days} days a week.{pay}
    How many hours {r.pick(f"does {who.he} practice", "is that")} in {weeks} weeks?

    days = {days} * {weeks}
    minutes = {minutes} * days
    hours = minutes / 60
    """
    return text, Fraction(minutes * days * weeks, 60)


def trains_meet(r):
    a, b, hours = r.number(30, 90), r.number(30, 90), r.number(2, 9)
    unit, thing = r.pick("miles", "kilometers"), r.pick("trains", "cars", "trucks")
    start = r.aside(f"They start at {r.number(6, 11)} in the morning.")
    text = f"""
    Two {thing} are {(a + b) * hours} {unit} apart and travel toward each other.{start}
    Their speeds are {a} and {b} {unit} per hour.
    {r.pick("After how many hours do they meet", "How many hours does it take until they meet")}?

    distance = {(a + b) * hours}
    speed = {a} + {b}
    hours = distance / speed
    """
    return text, hours


def chores(r):
    who, hours, a, b = r.person(), r.number(3, 9), r.number(10, 60), r.number(10, 50)
    n, each = r.number(2, 8), r.number(2, 8)
    thing = r.pick("rooms", "windows", "chairs", "lamps", "tables")
    text = f"""
    {who} has {hours} hours before dinner.
    {who.He} reads for {a} minutes and cooks for {b} minutes.
    Then {who.he} cleans {n} {thing} for {each} minutes each.
    {r.pick("How many minutes are left", "How much time is left, in minutes")}?

    minutes = {hours} * 60
    cleaning = {n} * {each}
    used = {a} + {b} + cleaning
    minutes_left = minutes - used
    """
    return text, 60 * hours - a - b - n * each


# -- length and area -----------------------------------------------------------------------------


def fence(r):
    who, long, wide, price = r.person(), r.number(21, 60), r.number(5, 20), r.price(3, 15)
    unit, units = r.pick(("foot", "feet"), ("meter", "meters"), ("yard", "yards"))
    what = r.pick("garden", "field", "farm", "park")
    trees = r.aside(f"There are {r.number(3, 30)} trees near the {what}.")
    text = f"""
    {who} builds a fence around a {what} that is {long} {units} long and {wide} {units} wide.{trees}
    A {unit} of fence costs ${price}.
    {r.pick("How much does the fence cost", "What is the cost of the whole fence")}?

    half = {long} + {wide}
    fence = half * 2
    cost = fence * {price}
    """
    return text, 2 * (long + wide) * price


def tiles(r):
    who, side, price = r.person(), r.pick(2, 3, 4), r.price(2, 12)
    long, wide = side * r.number(7, 15), side * r.number(2, 7)
    room = r.pick("kitchen", "bathroom", "hall", "shop")
    text = f"""
    {who} tiles the floor of a {room}, which is {long} feet long and {wide} feet wide.
    The tiles are square with sides of {side} feet and cost ${price} each.
    How much do they cost?

    floor = {long} * {wide}
    tile = {side} * {side}
    tiles = floor / tile
    cost = tiles * {price}
    """
    return text, long // side * (wide // side) * price


def square_runs(r):
    who, side, rounds, days = r.person(), r.number(20, 200, 5), r.number(2, 12), r.number(2, 14)
    moves = r.pick("runs", "walks", "jogs")
    text = f"""
    A square {r.pick("field", "park", "garden")} has sides of {side} meters.
    {who} {moves} around it {rounds} times a day.{r.about(who.He)}
    How many meters is that in {days} days?

    around = {side} * 4
    daily_meters = around * {rounds}
    meters = daily_meters * {days}
    """
    return text, 4 * side * rounds * days


def harvest(r):
    who, rows, plants, each = r.person(), r.number(4, 25), r.number(5, 30), r.number(3, 12)
    thing, price = r.pick(*CROPS), r.price(1, 4)
    text = f"""
    {who} has {rows} rows of {plants} plants.{r.about(who.He)}
    Each plant grows {each} {thing}, which {who.he} sells for ${price} each.
    How much money does {who.he} {r.pick("get", "make")} in all?

    plants = {rows} * {plants}
    {thing} = plants * {each}
    money = {thing} * {price}
    """
    return text, rows * plants * each * price


def rope(r):
    who, pieces, each, left = r.person(), r.number(3, 20), r.number(4, 30), r.number(2, 40)
    what, unit = r.pick("rope", "ribbon", "wire", "string"), r.pick("feet", "inches", "meters")
    ask = r.pick(f"How long is the rest of the {what}", f"How much {what} is left")
    first = r.number(2, 40)
    long = first + pieces * each + left
    text = f"""
    {who} has a {what} that is {long} {unit} long.
    {who.He} uses {first} {unit} for a gift and cuts {pieces} pieces of {each} {unit} from it.
    {ask}, in {unit}?

    pieces = {pieces} * {each}
    used = pieces + {first}
    {what}_left = {long} - used
    """
    return text, left


# -- food, farm and house ------------------------------------------------------------------------


def recipe(r):
    who, thing, k, times = r.person(), r.pick(*BAKED), r.number(4, 30, 2), r.number(2, 9)
    cups = r.number(2, 6)
    what = r.pick("cups of flour", "cups of sugar", "cups of milk", "eggs", "spoons of butter")
    name = what.split()[-1]
    bakes = r.aside(f"They bake for {r.number(15, 50)} minutes.")
    text = f"""
    A recipe for {k} {thing} needs {cups} {what}.{bakes}
    {who} wants to make {k * times} {thing}.
    How many {what} does {who.he} need?

    {thing} = {k * times}
    batches = {thing} / {k}
    {name} = batches * {cups}
    """
    return text, times * cups


def calories(r):
    who, (a, b), limit = r.person(), r.two(FRUIT + BAKED), r.number(1500, 2500, 50)
    n, m, p, q = r.number(2, 4), r.number(2, 4), r.number(50, 180, 5), r.number(50, 180, 5)
    text = f"""
    {who} wants to eat {limit} calories a day.
    Today {who.he} has had {n} {a} with {p} calories each and {m} {b} with {q} calories each.
    How many {r.pick("calories are left", f"more calories can {who.he} have")}?

    {a} = {n} * {p}
    {b} = {m} * {q}
    eaten = {a} + {b}
    calories_left = {limit} - eaten
    """
    return text, limit - n * p - m * q


def eggs(r):
    who, hens, each, price = r.person(), 12 * r.number(1, 8), r.number(2, 6), r.price(2, 6)
    sells = r.pick("sells them for ${} a dozen", "sells every dozen for ${}").format(price)
    cows = r.aside(f"There are also {r.number(3, 40)} cows on the farm.")
    text = f"""
    {who} has {hens} hens, and each of them lays {each} eggs a week.{cows}
    {who.He} {sells}.
    How much money does {who.he} make in a week?

    eggs = {hens} * {each}
    dozens = eggs / 12
    money = dozens * {price}
    """
    return text, hens // 12 * each * price


def pet_food(r):
    who, pets, each, days = r.person(), r.number(2, 12), r.number(2, 9), r.number(2, 12)
    animals, unit = r.pick("dogs", "cats", "rabbits", "parrots"), r.pick("cups", "ounces")
    bags, size = r.number(2, 6), pets * each * days
    text = f"""
    {who} has {pets} {animals}, and each of them eats {each} {unit} of food a day.{r.about(who.He)}
    {who.He} buys {bags} bags, each with {size} {unit} of food.
    How many days will {r.pick("the food", "they", "this")} last?

    food = {bags} * {size}
    daily_food = {pets} * {each}
    days = food / daily_food
    """
    return text, bags * days


def legs(r):
    who, (a, b) = r.person(), r.two(("cows", "horses", "goats", "pigs", "sheep"))
    c = r.pick("hens", "ducks")
    n, m, k = r.number(2, 60), r.number(2, 60), r.number(2, 60)
    fields = r.aside(f"The farm has {r.number(2, 12)} fields.")
    text = f"""
    {who} has {n} {a}, {m} {b} and {k} {c} on a farm.{fields}
    How many legs do {r.pick("all these animals", "the animals")} have in total?

    {a}_and_{b} = {n} + {m}
    legs = {a}_and_{b} * 4
    {c}_legs = {k} * 2
    result = legs + {c}_legs
    """
    return text, 4 * (n + m) + 2 * k


def bus(r):
    n, on, off, more = r.number(16, 60), r.number(2, 20), r.number(2, 15), r.number(2, 20)
    thing = r.pick("bus", "train", "tram", "ferry")
    stop = r.aside(f"It stops for {r.number(2, 9)} minutes.")
    text = f"""
    A {thing} leaves with {n} people.
    At the first stop {off} people get off and {on} get on.{stop}
    At the second stop {r.pick("", "another ")}{more} get on.
    How many people are on the {thing} now?

    people = {n} - {off}
    people = people + {on}
    people = people + {more}
    """
    return text, n - off + on + more


def growth(r):
    who, height, grow, months = r.person(), r.number(12, 90), r.number(2, 9), r.number(3, 30)
    what, unit = r.pick("tree", "bush", "vine", "plant"), r.pick("inches", "centimeters")
    cut = r.number(2, 12)
    text = f"""
    {who} has a {what} that is {height} {unit} tall and grows {grow} {unit} a month.
    After {months} months {who.he} cuts {cut} {unit} off.
    {r.pick("How tall is it then", "What is its new height")}?

    growth = {grow} * {months}
    height = {height} + growth
    final_height = height - {cut}
    """
    return text, height + grow * months - cut


def heavy_box(r):
    box, each = r.number(200, 900, 50), r.number(50, 300, 10)
    n, m, thing = r.number(3, 30), r.number(2, 12), r.pick(*FRUIT, *CROPS)
    costs = r.aside(f"The box costs ${r.number(2, 9)}.")
    text = f"""
    An empty box weighs {box} grams.
    It is filled with {n} {thing} of {each} grams each.{costs}
    How many grams do {m} {r.pick("full", "such full")} boxes weigh?

    {thing} = {n} * {each}
    full_box = {box} + {thing}
    boxes = full_box * {m}
    """
    return text, m * (box + n * each)


# -- averages and percentages --------------------------------------------------------------------


def average(r):
    who, mean, up, down = r.person(), r.number(40, 80), r.number(2, 18), r.number(2, 18)
    x, y, z = mean + up, mean - down, mean - up + down
    what, where = r.pick(("points", "games"), ("points", "tests"), ("pages", "days"))
    does = "reads" if what == "pages" else "scores"
    text = f"""
    In three {where} {who} {does} {x}, {y} and {z} {what}.{r.about(who.He)}
    What is {r.pick(f"{who.his} average", f"the average number of {what}")}?

    total = {x} + {y} + {z}
    {where} = 3
    average = total / {where}
    """
    return text, mean


def needed_score(r):
    who, a, b, c = r.person(), r.number(60, 95), r.number(60, 95), r.number(60, 98)
    c += -(a + b + c) % 3
    goal = (a + b + c) // 3
    what = r.pick("test", "game", "round", "exam")
    text = f"""
    {who} scored {a} points in the first {what} and {b} in the second.{r.about(who.He)}
    How many points does {who.he} need in the third {what} for an average of {goal}?

    needed_total = {goal} * 3
    points = {a} + {b}
    third = needed_total - points
    """
    return text, c


def town(r):
    n, percent, away = 100 * r.number(5, 90), r.number(2, 40), r.number(10, 400)
    what, people = r.pick(("town", "people"), ("village", "people"), ("city", "people"))
    old = r.aside(f"The {what} is {r.number(50, 300)} years old.")
    text = f"""
    A {what} had {n} {people} last year.{old}
    The number {r.pick("grew", "went up", "rose")} by {percent}%, and then {away} {people} left.
    How many {people} are there now?

    growth = {n} * {percent} / 100
    {people} = {n} + growth
    {people}_now = {people} - {away}
    """
    return text, n // 100 * (100 + percent) - away


def exam_points(r):
    who, n, percent = r.person(), 20 * r.number(1, 6), r.number(40, 95, 5)
    points, minutes = r.number(2, 6), r.number(30, 120, 5)
    what, name = (
        r.pick("test", "exam", "quiz"),
        r.pick("A math", "A history", "A music", "A science"),
    )
    text = f"""
    {name} {what} has {n} questions, and each is worth {points} points.
    {who} answers {percent}% of them correctly.{r.aside(f"The {what} lasts {minutes} minutes.")}
    How many points does {who.he} miss?

    correct = {n} * {percent} / 100
    wrong = {n} - correct
    missed_points = wrong * {points}
    """
    return text, n * (100 - percent) // 100 * points


def raise_and_spend(r):
    who, pay, percent = r.person(), 100 * r.number(12, 50), r.number(2, 20)
    rent = r.number(400, 900, 10)
    gets = r.pick("gets a raise of {}%", "earns {}% more this month").format(percent)
    text = f"""
    {who} earned ${pay} last month and {gets}.{r.about(who.He)}
    {who.He} pays ${rent} for rent.
    How much money is left this month?

    more = {pay} * {percent} / 100
    pay = {pay} + more
    money_left = pay - {rent}
    """
    return text, pay // 100 * (100 + percent) - rent


def interest(r):
    who, saved, percent, years = r.person(), 100 * r.number(3, 90), r.number(2, 9), r.number(2, 12)
    puts = r.pick(f"{who} puts ${saved} into a bank.", f"{who} has ${saved} in a bank.")
    text = f"""
    {puts}{r.about(who.He)}
    The bank pays {percent}% of this sum every year.
    How much money will {who.he} have after {years} years?

    yearly_gain = {saved} * {percent} / 100
    gain = yearly_gain * {years}
    money = {saved} + gain
    """
    return text, saved + saved // 100 * percent * years


# -- held out: known steps in combinations that no template above has ----------------------------


@held_out
def left_after_discount(r):
    who, thing, money = r.person(), r.pick(*CLOTHES), r.number(100, 200)
    price, percent = r.number(20, 95, 5), r.number(10, 60, 10)
    text = f"""
    {thing.a.capitalize()} costs ${price}, but today it is {percent}% off.
    {who} has ${money} and buys one.{r.about(who.He)}
    How much money does {who.he} have left?

    discount = {price} * {percent} / 100
    sale_price = {price} - discount
    money_left = {money} - sale_price
    """
    return text, money - price * Fraction(100 - percent, 100)


@held_out
def wage_and_share(r):
    who, share, pay = r.person(), r.share(), r.number(10, 40)
    hours, days = share.bottom * r.number(1, 12 // share.bottom), r.number(2, 6)
    text = f"""
    {who} works {hours} hours a day for {days} days and earns ${pay} an hour.{r.about(who.He)}
    {who.He} saves {share.words} of the money.
    How much money does {who.he} have left to spend?

    hours = {hours} * {days}
    money = hours * {pay}
    saved = money {share.code}
    money_left = money - saved
    """
    return text, hours * days * pay * (share.bottom - share.top) // share.bottom


@held_out
def share_then_boxes(r):
    who, thing, some, price = r.person(), r.pick(*COUNTED), r.share(), r.price(8, 25)
    size, boxes = r.number(3, 12), (some.bottom - some.top) * r.number(2, 9)
    n = size * boxes * some.bottom // (some.bottom - some.top)
    text = f"""
    {who} has {n} {thing} and gives a friend {some.words} of them.
    {who.He} packs the rest in boxes of {size} and sells each box for ${price}.
    How much money does {who.he} get?

    given = {n} {some.code}
    rest = {n} - given
    boxes = rest / {size}
    money = boxes * {price}
    """
    return text, boxes * price


@held_out
def rest_of_the_way(r):
    who, h, v, k, w = r.person(), r.number(2, 8), r.number(20, 80), r.number(2, 8), r.number(20, 80)
    unit = r.pick("miles", "kilometers")
    text = f"""
    {who} wants to drive {h * v + k * w} {unit}.
    For {h} hours {who.he} drives at {v} {unit} per hour.
    If {who.he} drives the rest at {w} {unit} per hour, how many hours does the trip take?

    first_part = {h} * {v}
    rest = {h * v + k * w} - first_part
    hours = rest / {w}
    total_hours = {h} + hours
    """
    return text, h + k


@held_out
def garden_with_a_path(r):
    who, long, wide, each = r.person(), r.number(31, 60), r.number(8, 30), r.number(2, 6)
    path, thing = r.number(12, 60), r.pick(*CROPS)
    text = f"""
    {who} has a garden that is {long} feet long and {wide} feet wide.
    A path takes {path} square feet of it.
    Each square foot of the rest grows {each} {thing}.
    How many {thing} are there?

    garden = {long} * {wide}
    rest = garden - {path}
    {thing} = rest * {each}
    """
    return text, (long * wide - path) * each


@held_out
def average_age(r):
    (a, b), (c, _), (words, times) = r.two(WOMEN), r.two(MEN), r.pick(*TIMES)
    age, years = r.number(6, 90 // times), r.number(2, 12)
    years += -(age * (times + 2) + years) % 3
    text = f"""
    {a} is {age} years old, {b} is {words} as old, and {c} is {years} years older than {a}.
    What is their average age?

    {b.var}_age = {age} * {times}
    {c.var}_age = {age} + {years}
    total_age = {age} + {b.var}_age + {c.var}_age
    average = total_age / 3
    """
    return text, (age * (times + 2) + years) // 3


@held_out
def shared_trip(r):
    who, friends, per = r.person(), r.number(2, 5), r.number(18, 45)
    gallons, price = (friends + 1) * r.number(1, 6), r.price(3, 5)
    text = f"""
    {who} and {friends} friends drive {per * gallons} miles in a van.
    It goes {per} miles on a gallon of gas, and a gallon costs ${price}.
    If they share the cost equally, how much does each person pay?

    gallons = {per * gallons} / {per}
    gas_cost = gallons * {price}
    people = {friends} + 1
    result = gas_cost / people
    """
    return text, gallons // (friends + 1) * price


@held_out
def share_of_times(r):
    (a, b), thing, (words, times) = r.two(PEOPLE), r.pick(*COUNTED), r.pick(*TIMES)
    share = r.share()
    n = share.bottom * r.number(2, 15)
    text = f"""
    {a} has {n} {thing}, and {b} has {words} as many.{r.about(a)}
    Then {b} gives {share.words} of the {thing} to a friend.
    How many {thing} does {b} keep?

    {b.var}_{thing} = {n} * {times}
    given = {b.var}_{thing} {share.code}
    {thing}_left = {b.var}_{thing} - given
    """
    return text, n * times - n * times * share.top // share.bottom


TEMPLATES = [f for f in globals().values() if isfunction(f) and [*signature(f).parameters] == ["r"]]
SEEN = {f.__name__: f for f in TEMPLATES if f.__name__ not in HELD_OUT}
