"""comparison.py and plot.py on synthetic metrics: crossings, ratios, intervals known by hand."""

import colorsys
import contextlib
import json
import math
import re
import zipfile

import numpy as np
import pytest
from conftest import HOUSE, metrics, run_script
from matplotlib.colors import to_rgb
from toys import write_lines

from studies import comparison, labels, plot, records
from studies.comparison import groups_of, load_run

PUMA, MDM = "PUMA (2 seeds)", "random masks (2 seeds)"
ONE, OTHER = "PUMA (1 seed)", "random masks (1 seed)"


@pytest.fixture
def make(tmp_path):
    """Writes out/NAME/metrics.jsonl with an evaluation per (iteration, accuracy); the run.

    pace: seconds of an iteration, if they are recorded.
    """

    def make(name, points=((0, 0.0),), pace=None, **config):
        (tmp_path / name).mkdir()
        config = {"method": "puma", "seed": 1, "out_dir": name, "lr": 0.1} | config
        rows = [{"type": "config", "config": config, "versions": {}, "commit": "c"}]
        for i, accuracy in points:
            timed = {} if pace is None else {"seconds": pace * i}
            rows.append({"type": "train", "iter": i, "visits": 2.5, "hidden": 0.5} | timed)
            scores = {"top_k": accuracy, "margin": accuracy / 2}
            rows.append({"type": "eval", "iter": i, "accuracy": scores, "val_loss": 1.0})
        write_lines(tmp_path / name / "metrics.jsonl", rows)
        return load_run(tmp_path / name)

    return make


@pytest.fixture
def four(make):
    """PUMA reaches 0.5 at 100 and 200, MDM at 200 and 800: ratios 2 and 4."""
    return [
        make("puma-1", [(0, 0.0), (160, 0.8)], seed=1),
        make("puma-2", [(0, 0.0), (320, 0.8)], seed=2),
        make("mdm-1", [(0, 0.0), (320, 0.8)], method="mdm", seed=1),
        make("mdm-2", [(0, 0.0), (960, 0.6)], method="mdm", seed=2),
    ]


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """Draws a figure of runs; its axes."""
    kept, panels = [], plot.panels

    @contextlib.contextmanager
    def keep(*args, **settings):
        with panels(*args, **settings) as found:
            yield found
        kept[:] = found

    def draw(figure, runs):
        plot.FIGURES[figure](groups_of(runs), tmp_path / "figure.png")
        assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
        return [*kept]

    monkeypatch.setattr(plot, "panels", keep)
    return draw


def lines(axes):
    return [list(zip(*line.get_data(), strict=True)) for line in axes.get_lines()]


def tables(runs, targets):
    """{first cell: other cells} of both tables: what was reached, and ratios."""
    for table in comparison.comparisons(groups_of(runs), "top_k", targets):
        rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
        yield {first: rest for first, *rest in rows}


def labelled(runs):
    return [group.label for group in groups_of(runs)]


def test_iterations_to_interpolates_between_evaluations():
    points = [(100, 0.25), (200, 0.5), (400, 0.25), (600, 0.75)]
    assert comparison.iterations_to(points, 0.375) == 150
    assert comparison.iterations_to(points, 0.5) == 200
    assert comparison.iterations_to(points, 0.625) == 550
    assert comparison.iterations_to(points, 0.125) == 100
    assert comparison.iterations_to(points, 0.8) is None


def test_t_quantiles_against_the_integral_of_the_density():
    x = np.linspace(0, 1, 200_001)
    for df, quantile in enumerate(comparison.T_QUANTILES, start=1):
        scale = math.gamma((df + 1) / 2) / math.gamma(df / 2) / math.sqrt(df * math.pi)
        density = scale * (1 + (x * quantile) ** 2 / df) ** (-(df + 1) / 2)
        assert np.mean(density) * quantile == pytest.approx(0.475, abs=1e-4)


def test_interval():
    half = 4.303 / math.sqrt(3)
    assert comparison.interval([1.0, 2.0, 3.0]) == pytest.approx((2, 2 - half, 2 + half))
    assert comparison.interval([1.0, 2.0, 3.0], (0, 3)) == (2, 0, 3)
    middle, low, high = comparison.interval([5.0])
    assert middle == 5.0 and math.isnan(low) and math.isnan(high)
    half = 2.086 * 1.012739 / math.sqrt(40)  # beyond 20 degrees of freedom
    assert comparison.interval([0.0, 2.0] * 20)[2] == pytest.approx(1 + half)


def test_groups_differ_in_more_than_seed_and_folder(make, four):
    other = make("lr", lr=0.2, method="mdm")
    assert labelled([*four, other]) == [PUMA, MDM, "random masks, lr = 0.2 (1 seed)"]
    with pytest.raises(ValueError, match="same configuration and seed"):
        labelled([*four, four[0]._replace(folder="another")])


def test_the_reference_is_mdm_wherever_it_stands_else_the_last(make, four):
    orders = four, [*four[2:], *four[:2]], [*four[:2], make("slow", lr=2)]
    for runs, place in zip(orders, (1, 0, 1), strict=True):
        groups = groups_of(runs)
        assert all(comparison.reference_of(group, groups) is groups[place] for group in groups)


def test_tables_have_crossings_and_ratios_by_seed(four):
    reached, ratios = tables([four[1], four[0], *four[2:]], [0.5])  # the seeds in another order
    assert reached["top_k accuracy"] == ["at the end", "at iter", "iterations to 0.5"]
    assert reached[PUMA][1:] == ["160, 320", f"150 [{150 - 635.3:.0f}, {150 + 635.3:.0f}]"]
    assert reached[MDM][2].startswith("500 [")
    wide = 12.706 * math.log(2) / 2
    low, high = (math.exp(math.log(8) / 2 + sign * wide) for sign in (-1, 1))
    assert ratios[PUMA][:3] == [MDM, "2", f"{math.sqrt(8):.2f} [{low:.2f}, {high:.2f}]"]
    assert list(ratios) == ["reference over group", "---", PUMA]


def test_seconds_of_training_are_compared_where_they_are_recorded(make, capsys):
    masks, puma = {"method": "mdm", "pace": 1}, {"pace": 2}  # a step of PUMA costs twice as much
    runs = [
        make("mdm-1", [(0, 0.0), (320, 0.8)], seed=1, **masks),  # 0.5 after 200 seconds
        make("mdm-2", [(0, 0.0), (960, 0.6)], seed=2, **masks),  # 800
        make("puma-1", [(0, 0.0), (160, 0.8)], seed=1, **puma),  # 200
        make("puma-2", [(0, 0.0), (320, 0.8)], seed=2, **puma),  # 400
    ]
    plot.print_comparisons(groups_of(runs))
    table = capsys.readouterr().out.split("training time")[1]
    line = next(line for line in table.splitlines() if PUMA in line)
    wide = 12.706 * math.log(2) / 2
    low, high = (math.exp(math.log(2) / 2 + sign * wide) for sign in (-1, 1))
    assert f"| 300 [{300 - 1270.6:.0f}, {300 + 1270.6:.0f}] |" in line
    assert f"| {math.sqrt(2):.2f} [{low:.2f}, {high:.2f}] |" in line
    plot.print_comparisons(groups_of([*runs, make("old", seed=3)]))
    assert "training time" not in capsys.readouterr().out


def test_what_is_not_reached_or_reached_from_the_start_has_no_ratio(make, four):
    reached, ratios = tables(four, [0.7, 0.9])
    assert reached[MDM][2:] == ["not reached by 1 of 2", "not reached by 2 of 2"]
    assert ratios[PUMA][2:4] == ["-", "-"]
    reached, ratios = tables([make("late", [(300, 0.6), (600, 0.9)]), four[2]], [0.5])
    assert (reached[ONE][2], reached[OTHER][2], ratios[ONE][2]) == ("<= 300", "200", "-")


def test_no_ratio_without_shared_seeds_or_with_zero_error(make, four):
    perfect = make("perfect", [(0, 0.0), (100, 1.0)], seed=2)
    _, ratios = tables([perfect, four[2]], [0.5])
    assert ratios[ONE][1:] == ["0", "-", "-", "-"]
    _, ratios = tables([perfect, four[3]], [0.5])
    assert ratios[ONE][1] == "1" and ratios[ONE][3] == "-"


def test_groups_are_compared_with_random_masks_of_the_same_settings(make):
    """Iterations to 0.5: 100 against 150 with 12 clues, 100 against 50 with minimal puzzles."""
    runs = []
    for method, clues, half in (("puma", 12, 100), ("mdm", 12, 150), ("puma", None, 100)):
        points = [(0, 0.0), (half, 0.5), (2 * half, 0.8)]
        runs.append(make(f"{method}{clues}", points, method=method, clues=clues))
    runs.append(make("mdm", [(0, 0.0), (100, 1.0)], method="mdm", clues=None))
    _, found = tables(runs, [0.5])
    masks = "random masks, 12 clues (1 seed)"
    assert found["PUMA, 12 clues (1 seed)"] == [masks, "1", "1.50", "1.00", "+0.0"]
    assert found["PUMA, minimal puzzles (1 seed)"][2] == "0.50"


def test_runs_that_changed_or_started_differently_are_arms_of_their_own(make, tmp_path):
    starts = [("a", 1, "x"), ("b", 2, "x"), ("c", 1, "y"), ("d", 2, "y")]
    runs = [make(own, seed=n, init_from=f"{of}_{n}/checkpoint.pt") for own, n, of in starts]
    rows = metrics(tmp_path / "d")
    write_lines(tmp_path / "d/metrics.jsonl", [*rows, rows[0] | {"changes": {"lr": [2, 0.1]}}])
    groups = groups_of([*runs[:3], load_run(tmp_path / "d")])
    assert [len(group.seeds) for group in groups] == [2, 1, 1] and "x_SEED" in groups[0].label


# -- figures ---------------------------------------------------------------------------------------
def test_the_mean_has_the_iterations_that_all_seeds_have(make, draw):
    ends = [(1, 0.0), (2, 0.5), (3, 0.9)], [(1, 0.0), (2, 0.7)]
    (axes,) = draw("curves", [make(f"{n}", points, seed=n) for n, points in enumerate(ends)])
    assert np.allclose(lines(axes)[0], [(1, 0), (2, 0.6)])
    assert lines(axes)[1:] == [*map(list, ends)]


def test_visits_are_drawn_where_a_run_says_them(make, draw):
    run = make("run", [(100, 0.1), (200, 0.2)])
    drawn = [[(100, value), (200, value)] for value in (2.5, 0.5, 1.0)]
    assert [lines(axes) for axes in draw("visits", [run])] == [[curve] for curve in drawn]
    del run.curves["visits"]
    with pytest.raises(ValueError, match=r"metrics\.jsonl has no visits"):
        draw("visits", [run])


def test_intervals_of_accuracies_stay_within_0_and_1(make, draw):
    """With seeds at 1, 0.6 and 0.2 the interval would reach from -0.39 to 1.59."""
    runs = [make(f"{n}", [(0, 0.5), (9, end)], seed=n) for n, end in enumerate([1, 0.6, 0.2])]
    assert not draw("curves", runs[:2])[0].collections  # of two seeds it says nothing
    (axes,) = draw("curves", runs)
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == 0 and heights.max() == 1
    (axes,) = draw("final", runs)
    (bar,) = axes.collections
    assert np.allclose(bar.get_segments()[0][:, 0], [0, 1])
    reached, _ = tables(runs, [0.5])
    assert reached["PUMA (3 seeds)"][0] == "0.6000 [0.0000, 1.0000]"


def test_where_an_update_is_several_passes_the_axis_counts_passes(make, draw):
    """And PUMA keeps its colour beside a carry that comes first."""
    points = [(1, 0.1), (2, 0.2)]
    carried = make("carried", points, carry=True, window=2, max_iters=2)
    plain = make("plain", points, carry=False, window=1, max_iters=4)
    (axes,) = draw("curves", [carried, plain])
    assert lines(axes) == [[(2, 0.1), (4, 0.2)], points] and axes.get_xlabel() == "forward passes"
    assert axes.get_lines()[1].get_color() == labels.SHADES["PUMA"][0]
    assert draw("curves", [plain])[0].get_xlabel() == "updates"
    said = ["PUMA, carry, W = 2, 2 updates (1 seed)", "PUMA, 4 updates (1 seed)"]
    assert labelled([carried, plain]) == said


def test_each_task_is_compared_with_random_masks_of_its_own(make, draw, capsys):
    runs = [
        make("puma-a", [(0, 0.0), (100, 0.9)], dataset="a", pace=2),
        make("mdm-a", [(0, 0.0), (400, 0.8)], dataset="a", pace=1, method="mdm"),
        make("mdm-b", [(0, 0.0), (300, 0.3)], dataset="b", method="mdm"),
        make("puma-b", [(0, 0.0), (600, 0.2)], dataset="b"),
    ]
    for run in runs:
        run.curves["sure"] = {100: 0.25}
    first, second = draw("tasks", runs)
    printed = capsys.readouterr().out
    # half of 0.8 is 0.4, reached at 400 / 9 and 200; nine tenths of it are 0.72, at 80 and 360
    a = "200/44, 4.50, 1 | 360/80, 4.50, 1 | 360/160, 2.25, 1"
    assert f"| a | PUMA (1 seed) | 90.0 | +10.0 | {a} |" in printed
    assert "| a | random masks (1 seed) | 80.0 | - | - | - | - |" in printed
    assert "| b | PUMA (1 seed) | 20.0 | -10.0 | 150/450, 0.33, 1 | - | - |" in printed
    assert (first.get_title(), second.get_title()) == ("a", "b")
    assert lines(second) == [[(0, 0), (300, 0.3)], [(0, 0), (600, 0.2)], [(100, 0.25)]]


def test_where_not_all_pairs_get_there_the_others_are_compared_and_counted(make):
    """The second of three pairs does not reach 0.45, half of what random masks end with."""
    runs = [
        make(f"{method}-{seed}", [(0, 0.0), (end, share)], method=method, seed=seed)
        for seed, (ours, theirs) in enumerate([(100, 400), (100, 200), (100, 100)])
        for method, end, share in [("puma", ours, 0.2 if seed == 1 else 0.9), ("mdm", theirs, 0.9)]
    ]
    said = comparison.task_table({"a": groups_of(runs)}).splitlines()[-2].split(" | ")
    assert said[4].startswith("125/50, 2.00 [") and said[4].endswith(", 2")  # ratios of 4 and 1


def test_what_the_samplers_of_eval_have_solved(make, tmp_path):
    """Of the samplers that all runs have; not on other problems than the run's own."""
    shares = {"puma-1": 0.9, "puma-2": 0.7, "mdm-1": 0.5, "mdm-2": 0.4}
    row = {"id": "a", "sampler": "in halves", "kinds": {}, "set": "", "file": ""}
    for name, share in shares.items():
        make(name, method=name[:-2], seed=int(name[-1]))
        rows = [row | {"accuracy": share}, row | {"accuracy": 0.1, "file": "others.csv"}]
        rows += [row | {"accuracy": 0.2, "sampler": "one by one"}] * (share > 0.4)
        (tmp_path / name / "eval.json").write_text(json.dumps(rows))
    groups = groups_of([load_run(tmp_path / name) for name in shares])
    head, _, puma, mdm = comparison.decoding_table({"a": groups}).splitlines()
    assert head == "| task | runs | in halves |"
    assert puma.startswith(f"| a | {PUMA} | 80.0 [") and "; +35.0 [-28.5, +98.5] |" in puma
    assert mdm == f"| a | {MDM} | 45.0 [0.0, 100.0]; - |"


ARCHIVE = f"{HOUSE}/results/sudoku_mini.zip/mdm_1"
OWN = {"puma": {"color": "#0072b2", "linestyle": "-"}}  # Okabe and Ito's blue and vermilion
OWN |= {"mdm": {"color": "#d55e00", "linestyle": "--"}}


def test_a_method_looks_the_same_in_every_figure(four, make):
    """Whatever else is drawn, and in whatever order; no two groups look alike."""
    puma, mdm, slow = four[0], four[2], [make(f"lr-{lr}", lr=lr) for lr in range(12)]
    for runs in [puma, mdm], [mdm, puma], [*slow, mdm], [make("carry", carry=True), puma, mdm]:
        groups = groups_of(runs)
        assert len({str(group.look) for group in groups}) == len(runs)
        for group in groups:
            if group.seeds[1] in (puma, mdm):
                assert group.look == OWN[group.method]
            hue = colorsys.rgb_to_hsv(*to_rgb(group.look["color"]))[0]
            own = colorsys.rgb_to_hsv(*to_rgb(OWN[group.method]["color"]))[0]
            assert hue == pytest.approx(own, abs=0.02)


def test_names_of_lines_keep_apart():
    """The middle two of four are pushed apart by as much; the others stay."""
    places = plot.apart([0.0, 0.5, 0.52, 0.9], [0.1] * 4)
    assert places == pytest.approx([0.0, 0.46, 0.56, 0.9])
    assert plot.apart([0.2, 0.2], [0.1, 0.3]) == pytest.approx([0.1, 0.3])


def test_lines_are_named_where_they_end_and_the_title_says_what_is_compared(make, draw):
    """The number of seeds is in the title, where it is the same for all."""
    task = {"dataset": "sudoku", "box": [2, 3], "clues": None}
    points = [(0, 0.0), (9, 0.5)]
    runs = [make(f"{k}", points, k_schedule=[[0, k]], **task) for k in (4, 9)]
    (axes,) = draw("curves", [*runs, make("m", points, method="mdm", **task)])
    said = {note.get_text().replace("\N{NO-BREAK SPACE}", " ") for note in axes.texts}
    assert said == {"PUMA, K = 4", "PUMA, K = 9", "random masks"}
    title = axes.figure.get_suptitle().replace("\n", " ")
    assert title == "6x6 Sudoku, minimal puzzles: PUMA and random masks, by K (1 seed)"


def test_groups_and_tasks_are_named_in_words(make):
    one = {"k_schedule": [[0, 9]], "tau": 0.9, "box": [3, 3], "clues": None, "dataset": "sudoku"}
    other = one | {"k_schedule": [[0, 9], [80, 4]], "tau": None, "method": "puma_reverse"}
    runs = [make("a", **one), make("b", **other), make("c", **one | {"method": "mdm"})]
    runs.append(make("d", **one | {"method": "mdm", "tau": None, "seed": 2}))  # it has no chains
    reverse = "PUMA, reverse, K = 9 to 4 by update 80, no fast-forward (1 seed)"
    assert labelled(runs) == ["PUMA, K = 9, tau = 0.9 (1 seed)", reverse, MDM]
    configs = [run.config for run in runs]
    assert labels.title(configs) == "9x9 Sudoku, minimal puzzles"
    configs[0]["clues"] = 30
    assert labels.title(configs) == "9x9 Sudoku"
    configs[0]["dataset"] = "addition"
    assert labels.title(configs) == ""
    assert labels.title([{"dataset": "addition", "digits": 10}]) == "addition, 10 digits"
    assert labels.title([{"dataset": "latin"}]) == "Latin squares"


# -- archives --------------------------------------------------------------------------------------
def test_an_archive_stands_for_its_runs(make, tmp_path):
    """Figure and table are the same bytes, and so is an archive that is made again."""
    for seed in (1, 2):
        for method, end in (("puma", 0.9), ("mdm", 0.8)):
            points = [(10, 0.1 * seed), (20, end)]
            folder = tmp_path / make(f"{method}_{seed}", points, seed=seed, method=method).folder
            (folder / "nelbo.json").write_text("{}")
            (folder / "checkpoint.pt").write_text("weights stay out")
    archive = tmp_path / "all.zip"
    pack = ["studies/records.py", f"--out={archive}"]
    run_script(*pack, f"--runs={tmp_path}/puma_*")
    run_script(*pack, f"--runs={tmp_path}/mdm_*")  # added
    first = archive.read_bytes()
    run_script(*pack, f"--runs={tmp_path}/*")
    assert archive.read_bytes() == first
    runs, files = ("mdm_1", "mdm_2", "puma_1", "puma_2"), ("metrics.jsonl", "nelbo.json")
    with records.opened(archive) as opened:
        assert opened.namelist() == [f"{run}/{file}" for run in runs for file in files]
    said, picture = [], tmp_path / "figure.png"
    for place in f"{tmp_path}/mdm_*", f"{archive}/mdm_*":
        flags = f"--runs={place}", f"--out={picture}", "--targets=[0.25]"
        said.append((run_script("studies/plot.py", *flags), picture.read_bytes()))
    assert said[0] == said[1] and "| iterations to 0.25 |" in said[0][0]


def test_an_archive_takes_no_two_runs_of_one_name(make, tmp_path, refused):
    for name in "a", "b":
        (tmp_path / name).mkdir()
        make(f"{name}/puma_1")
    pack = "studies/records.py", f"--out={tmp_path}/all.zip"
    said = refused(run_script, *pack, f"--runs={tmp_path}/a/*,{tmp_path}/b/*")
    assert f"{tmp_path}/a/puma_1 and {tmp_path}/b/puma_1 have the same name" in said
    run_script(*pack, f"--runs={tmp_path}/a/*,{tmp_path}/a/puma_1")  # one run, named twice


def test_what_is_no_archive_of_runs_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LARGEST", 1 << 20)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("run/metrics.jsonl", bytes(2 << 20))
    bomb = pytest.raises(SystemExit, match="more than 1 MB in an archive of records")
    with bomb, records.folders(f"{tmp_path}/bomb.zip"):
        pass
    empty = b"PK\5\6" + bytes(18)
    for content, message in (b"PK\3\4", "is not a zip file"), (empty, "no run matches '.*all.zip'"):
        (tmp_path / "all.zip").write_bytes(content)
        with pytest.raises(SystemExit, match=message), records.folders(f"{tmp_path}/all.zip"):
            pass


# -- mistakes --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "flags, message",
    [
        ([], "no runs: give folders"),
        (["--figure=curve"], "'curve': expected curves, final, visits"),
        ([f"--runs={','.join([ARCHIVE] * 2)}"], "same configuration and"),
    ],
)
def test_mistakes_are_named_without_a_traceback(flags, message, four, tmp_path, refused):
    flags = [f"--runs={tmp_path}/puma-1"] * bool(flags) + flags
    assert re.search(message, refused(run_script, "studies/plot.py", *flags))


def test_runs_without_a_record_are_named(make, tmp_path):
    with pytest.raises(ValueError, match=r"untested: metrics\.jsonl has no evaluation"):
        make("untested", [])
    for wrong in '"val_loss": null', '"accuracy": {"a": true}', '"accuracy": 3':
        (tmp_path / "untested/metrics.jsonl").write_text(f'{{"type": "eval", {wrong}}}\n')
        with pytest.raises(
            ValueError, match=r"metrics.jsonl, line 1: a value to draw is not a num"
        ):
            load_run(tmp_path / "untested")
    (tmp_path / "untested/metrics.jsonl").write_text("{\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1: not a JSON object"):
        load_run(tmp_path / "untested")
