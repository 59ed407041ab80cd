"""Verdicts on cases, one JSON line each, and the table of how many of each group got which.

correct       it ended as an undamaged run does: noticed and made good, or without effect
refused       exit status not 0 and a message that names what is wrong
vague         the same, but the message does not name it
told          other results than an undamaged run's, and a line that says so
silent        other results, exit status 0, and no word of it
lost          a message, but what was good before is gone or overwritten
traceback     shown to the user
crash         ended by a signal, or without a word
hang          more than the patience, many times what the good run takes
too strict    refused, though nothing is wrong
"""

import json
from collections import Counter

from tests.attacks.lab import lines_of, said, same

HELD = "correct", "refused", "vague", "told"
BAD = "silent", "lost", "traceback", "crash", "hang", "too strict"
TRACEBACK = "Traceback (most recent call last)"


def verdict(case, ended, folder):
    if ended.status is None:
        return "hang"
    if TRACEBACK in ended.errors:
        return "traceback"
    if found := case.after(folder, ended):
        return found
    if ended.status != 0:
        return refusal(case, ended)
    if case.must in ("accept", "any"):
        return "correct"
    if case.must == "refuse":
        return "silent"
    try:
        found = case.result(folder, ended)
    except Exception as error:  # what it left cannot be read
        found = f"unreadable: {error!r}"
    if same(found, case.whole.found):
        return "correct"
    return "told" if said(ended) - case.whole.lines else "silent"


def refusal(case, ended):
    text = ended.errors + ended.output
    if ended.status < 0 or not last_line(ended):
        return "crash"
    if case.must == "accept":
        return "too strict"
    return "refused" if any(name in text for name in case.names.split("|")) else "vague"


def last_line(ended):
    lines = lines_of(ended.errors)
    return lines[-1][:300] if lines else ""


def row(group, case, ended, found, words):
    return {
        "group": group, "case": case.name, "command": " ".join(words), "status": ended.status,
        "seconds": round(ended.seconds, 2), "stderr": last_line(ended), "verdict": found,
    }  # fmt: skip


def table(rows):
    """Markdown: a line for each group, and one for all."""
    groups = {}
    for each in rows:
        groups.setdefault(each["group"], []).append(each)
    head = ["group", "tried", "held", "of these vague", *BAD, "seconds"]
    lines = [head, ["---"] * len(head)]
    lines += [line(name, members) for name, members in groups.items()]
    if len(groups) > 1:
        lines.append(line("all", rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def line(name, rows):
    kinds = Counter(each["verdict"] for each in rows)
    held = sum(kinds[kind] for kind in HELD)
    counts = [len(rows), held, kinds["vague"], *(kinds[kind] for kind in BAD)]
    return [name, *map(str, counts), f"{sum(each['seconds'] for each in rows):.0f}"]


def write_line(file, each):
    file.write(json.dumps(each) + "\n")
    file.flush()
