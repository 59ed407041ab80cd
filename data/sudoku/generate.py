"""A black box that one calls, `chunks`: random grids, whose clues are taken away in random order.

Minimal puzzles follow the law "take a clue away while the solution stays unique; keep the puzzle if
naked and hidden singles solve it" (see `irreplaceable`), not the uniform law over puzzles. With a
number of clues, they are taken away while singles suffice.

64 puzzles share a machine word: a bit array is uint64 (..., W), bit b of word w belongs to puzzle
64 w + b, and one numpy operation moves all of them. A set of candidates is (n, n, n, W): digit,
row, column. Cells run row-major, n = rows * columns of a box, L = n * n.
"""

import itertools

import numpy as np

from data.processes import in_order
from sudoku import unit_cells

CHUNK = 4096  # puzzles dug side by side, W = 64
ROUNDS = 8  # of propagation between two guesses; fewer cost guesses, more cost time


def peer_masks(box):
    """All bits set where two cells share a row, a column or a box, else none, uint16 (L, L)."""
    cells = (box[0] * box[1]) ** 2
    masks = np.zeros((cells, cells), np.uint16)
    for unit in unit_cells(box):
        masks[np.ix_(unit, unit)] = 0xFFFF
    return masks


def pick_table(n):
    """Row m: the one-bit masks of the set bits of m, lowest first, then zeros, (2**n, n)."""
    bits = np.arange(1 << n)[:, None] & (1 << np.arange(n))
    return np.take_along_axis(bits, np.argsort(bits == 0, 1, stable=True), 1).astype(np.uint16)


def fill(rng, count, box):
    """Up to `count` random complete grids, digits 0..n-1, uint8 (<= count, L).

    Each grid takes a cell of fewest candidates, ties broken at random, and one of its digits; a
    grid that reaches a dead end (44% for 3x3) is dropped. The law is symmetric under relabelling
    and under the symmetries of the grid, but it is not the uniform one.
    """
    n = box[0] * box[1]
    peers, pick, row = peer_masks(box), pick_table(n), np.arange(count)
    left = np.full((count, n * n), (1 << n) - 1, np.uint16)  # candidates; a filled cell: all bits
    tie = rng.integers(0, 256, left.shape, np.uint16)
    grids = np.zeros_like(left)
    for _ in range(n * n):
        size = np.bitwise_count(left).astype(np.uint16)
        cell = (size << 8 | tie).argmin(1)
        choice = (rng.random(count) * size[row, cell]).astype(np.intp)
        digit = pick[left[row, cell], choice]  # 0 at a dead end
        left &= ~(peers[cell] & digit[:, None])
        grids[row, cell] = digit
        left[row, cell] = tie[row, cell] = 0xFFFF  # never the fewest again
    return np.bitwise_count(grids[grids.all(1)] - 1)


def pack(flags):
    """Bool (..., B) -> uint64 (..., B / 64)."""
    return np.packbits(np.ascontiguousarray(flags), axis=-1).view(np.uint64)


def unpack(words):
    """uint64 (..., W) -> uint8 of zeros and ones (..., 64 W)."""
    return np.unpackbits(words.view(np.uint8), axis=-1)


def union(words, axis):
    return np.bitwise_or.reduce(words, axis)


def union_in_units(words, box):
    """OR over each row, column and box: (n, n, n, W) -> three arrays (n, n, W)."""
    n = words.shape[0]
    parts = union(words.reshape(n, n, n // box[1], box[1], -1), 3)  # (n, n, stacks, W)
    boxes = union(
        parts.reshape(n, n // box[0], box[0], n // box[1], -1), 2
    )  # (n, bands, stacks, W)
    return union(parts, 2), union(words, 1), boxes.reshape(n, n, -1)


def at_cells(op, rows, cols, boxes, box):
    """Combine what union_in_units gives at the cells of the units: -> (n, n, n, W)."""
    n = rows.shape[0]
    bands, stacks = n // box[0], n // box[1]
    joined = op(rows.reshape(n, bands, box[0], 1, 1, -1), boxes.reshape(n, bands, 1, stacks, 1, -1))
    joined = op(joined, cols.reshape(n, 1, 1, stacks, box[1], -1))
    return joined.reshape(n, n, n, -1)


def new_singles(solution, solved, box):
    """Cells that one round of naked and hidden singles adds to `solved`, (n, n, W).

    Singles are sound, so what is known is the solution (n, n, n, W) at the solved cells. A cell
    is a naked single if no wrong digit is open in it; its digit is a hidden single if it's open
    nowhere else in some row, column or box.
    """
    seen = at_cells(np.bitwise_or, *union_in_units(solution & solved, box), box)
    wrong = ~(seen | solution | solved)
    elsewhere = at_cells(np.bitwise_and, *union_in_units(wrong, box), box)
    return (union(solution & ~elsewhere, 0) | ~union(wrong, 0)) & ~solved


def derivable(solution, given, target, box):
    """Puzzles (W,) whose one target cell follows from the given ones by singles; both (n, n, W)."""
    solved = given
    while True:
        new = new_singles(solution, solved, box)
        solved = solved | new
        open_ = union(target & ~solved, (0, 1))
        if not (open_ & union(new, (0, 1))).any():
            return ~open_


def dig(grids, order, clues, box):
    """Blank the cells of grids (B, L) in the given order (B, L) where singles bring them back.

    B is a multiple of 64. Stops at `clues` clues. Returns the clues left, bool (B, L).
    What follows from fewer clues follows from more: one try a cell leaves no removable clue.
    """
    count, cells = grids.shape
    n = box[0] * box[1]
    solution = pack(np.arange(n)[:, None, None] == grids.T).reshape(n, n, n, -1)
    given = pack(np.ones((cells, count), bool)).reshape(n, n, -1)
    left = np.full(count, cells)
    for turn in order.T:
        # Only the cell in turn is asked for. The blanks before it follow from the clues as they
        # are, this one among them, so they still follow once this one does.
        target = pack((np.arange(cells)[:, None] == turn) & (left > clues)).reshape(n, n, -1)
        # A puzzle that is down to `clues` has no target; it counts as derivable, but loses nothing.
        gone = derivable(solution, given & ~target, target, box) & union(target, (0, 1))
        given &= ~(target & gone)
        left -= unpack(gone)
        if (left <= clues).all():
            break
    return unpack(given.reshape(cells, -1)).T.astype(bool)


def exactly_once(parts):
    """Bits set in exactly one of the parts, and bits set in none."""
    once, twice = parts[0], np.zeros_like(parts[0])
    for part in parts[1:]:
        twice |= once & part
        once = once | part
    return once & ~twice, ~once


def eliminate(open_, box):
    """One round of singles on the candidates open_ (n, n, n, W), the solution unknown.

    Returns the candidates left, puzzles (W,) with a cell or a digit of a unit that has none, and
    puzzles (W,) with one candidate in every cell.
    """
    n = open_.shape[0]
    blocks = open_.reshape(n, n // box[0], box[0], n // box[1], box[1], -1)
    block_parts = [blocks[:, :, i, :, j] for i in range(box[0]) for j in range(box[1])]
    naked, empty = exactly_once(list(open_))
    by_row, no_row = exactly_once([open_[:, :, i] for i in range(n)])
    by_col, no_col = exactly_once([open_[:, i] for i in range(n)])
    by_box, no_box = exactly_once(block_parts)
    empty = empty | no_row | no_col | no_box.reshape(no_row.shape)
    single = at_cells(np.bitwise_or, by_row, by_col, by_box, box)
    single |= naked
    single &= open_
    seen = at_cells(np.bitwise_or, *union_in_units(single, box), box)
    seen |= union(single, 0)
    left = open_ & ~seen
    left |= single
    return left, union(empty, (0, 1)), np.bitwise_and.reduce(naked, (0, 1))


def propagate(states, box):
    """Singles on candidate masks, uint16 (I, L): masks left, contradictory (I,), complete (I,).

    Always ROUNDS rounds: to look whether one changed anything costs more than it saves.
    A complete state that is not contradictory is a solution: every unit has every digit.
    """
    n, count = box[0] * box[1], len(states)
    by_cell = np.zeros((n * n, -(-count // 64) * 64), np.uint16)
    by_cell[:, :count] = states.T
    open_ = np.stack([pack(by_cell & 1 << d != 0) for d in range(n)]).reshape(n, n, n, -1)
    for _ in range(ROUNDS):
        open_, contradictory, complete = eliminate(open_, box)
    by_cell[:] = 0
    for d, plane in enumerate(open_.reshape(n, n * n, -1)):
        by_cell |= unpack(plane).astype(np.uint16) << d
    flags = unpack(np.stack([contradictory, complete & ~contradictory]))[:, :count].astype(bool)
    return np.ascontiguousarray(by_cell.T[:count]), *flags


def branch(stack, top, lanes, states):
    """Put two halves of each state on its lane's stack: a cell without and with one candidate."""
    size = np.bitwise_count(states).astype(np.uint8)
    size[size == 1] = 255
    row, cell = np.arange(len(states)), size.argmin(1)
    options = states[row, cell]
    guess = options & ~options + np.uint16(1)  # the lowest bit
    stack[lanes, top[lanes]] = states
    stack[lanes, top[lanes], cell] = options & ~guess
    top[lanes] += 1
    stack[lanes, top[lanes]] = states
    stack[lanes, top[lanes], cell] = guess


def share(stack, top, state):
    """Give idle lanes a state each that waits below the top of another lane's stack."""
    idle, rich = np.flatnonzero(top < 0), np.flatnonzero(top > 0)
    idle, rich = idle[: len(rich)], rich[: len(idle)]
    below = top[rich] - 1
    stack[idle, 0], state[idle], top[idle] = stack[rich, below], state[rich], 0
    stack[rich, below] = stack[rich, below + 1]
    top[rich] = below


def search(states, owner, keep, box):
    """Clear keep (B,) of puzzles that own a state without a solution; states (I, L), owner (I,).

    Depth first, CHUNK lanes with a stack each; a guess fixes a cell, so L levels are enough.
    """
    queue, found = np.arange(len(states)), np.zeros(len(states), bool)
    lanes = min(CHUNK, len(states))
    stack = np.empty((lanes, states.shape[1] + 1, states.shape[1]), np.uint16)
    top, state = np.full(lanes, -1), np.zeros(lanes, np.intp)  # level of the top; -1 is idle
    while True:
        queue = queue[keep[owner[queue]]]
        idle = np.flatnonzero(top < 0)[: len(queue)]
        state[idle], queue = queue[: len(idle)], queue[len(idle) :]
        top[idle] = 0
        branch(stack, top, idle, states[state[idle]])
        share(stack, top, state)
        busy = np.flatnonzero(top >= 0)
        if not len(busy):
            return
        masks, contradictory, complete = propagate(stack[busy, top[busy]], box)
        tried = state[busy]
        found[tried[complete]] = True
        top[busy] -= contradictory
        waiting = np.bincount(state[top >= 0], minlength=len(states)) > 0
        keep[owner[tried[~waiting[tried] & ~found[tried]]]] = False
        over = found[tried] | ~keep[owner[tried]]
        top[busy[over]] = -1
        on = ~(over | contradictory)
        branch(stack, top, busy[on], masks[on])


def other_digit(solution, known, tried, box):
    """Candidate masks (I, L) where cells are known (I, L), the tried one (I,) has another digit."""
    full = np.uint16((1 << box[0] * box[1]) - 1)
    states = np.where(known, solution, full)
    states[np.arange(len(tried)), tried] ^= full
    return states


def irreplaceable(grids, given, order, box):
    """Puzzles (B,) in which each clue left could not be taken away by digging for uniqueness.

    Where singles don't bring a clue back, the solution may be unique still. Tried again with the
    cells known at its turn, the clue must admit another digit; then the same order dug while the
    solution is unique ends in the same puzzle. Conversely a puzzle dug that way and solved by
    singles is found here: singles solve whatever has more clues.
    """
    turn = order.argsort(1)
    solution = np.uint16(1) << grids
    cell, puzzle = np.nonzero(given.T)  # all puzzles early, so that few tries are in vain
    keep, undecided = np.ones(len(grids), bool), []
    for at in range(0, len(cell), CHUNK):
        owner, tried = puzzle[at : at + CHUNK], cell[at : at + CHUNK]
        owner, tried = owner[keep[owner]], tried[keep[owner]]
        later = turn[owner] > turn[owner, tried][:, None]
        states = other_digit(solution[owner], given[owner] | later, tried, box)
        states, contradictory, complete = propagate(states, box)
        keep[owner[contradictory]] = False
        open_ = keep[owner] & ~complete
        undecided.append((states[open_], owner[open_]))
    search(*map(np.concatenate, zip(*undecided, strict=True)), keep, box)
    return keep


def make_chunk(task):
    """Puzzles and solutions of one chunk, uint8 (<= size, L) each."""
    seed, index, size, clues, box = task
    rng = np.random.default_rng([seed, index])
    grids = np.empty((0, (box[0] * box[1]) ** 2), np.uint8)
    while len(grids) < size:
        grids = np.concatenate([grids, fill(rng, 1024, box)])[:size]
    order = rng.random(grids.shape).argsort(1)
    given = dig(grids, order, clues or 0, box)
    keep = slice(None) if clues else irreplaceable(grids, given, order, box)
    return ((grids + 1) * given)[keep], grids[keep] + 1


def chunks(box, clues, seed, workers):
    """Puzzles and solutions (<= CHUNK, L) of chunk after chunk, without end; some may be equal.

    Singles solve all of them. clues=None: no clue can be taken away, or the solution is no longer
    unique. clues=33: that many, or where singles do not get so far as few as they do. The first
    chunks are small, for who asks for few.
    """
    sizes = ((index, min(CHUNK, 64 << min(index, 6))) for index in itertools.count())
    return in_order(make_chunk, ((seed, *each, clues, box) for each in sizes), workers)
