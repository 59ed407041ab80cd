"""comparison.py and plot.py on synthetic metrics: crossings, ratios, intervals known by hand."""

import contextlib
import json
import math
import re

import numpy as np
import pytest
from conftest import metrics, run_script
from toys import write_lines

from studies import comparison, labels, plot, records

PUMA, MDM = "PUMA (2 seeds)", "random masks (2 seeds)"


@pytest.fixture
def write(tmp_path):
    """Writes out/NAME/metrics.jsonl with an evaluation per (iteration, accuracy); the folder."""

    def metrics(name, points, **config):
        folder = tmp_path / name
        folder.mkdir()
        config = {"method": "puma", "seed": 1, "out_dir": name, "lr": 0.1} | config
        records = [{"type": "config", "config": config, "versions": {}, "commit": "c"}]
        for i, accuracy in points:
            records.append({"type": "train", "iter": i, "loss": 1.0, "seconds": i / 8})
            scores = {"top_k": accuracy, "margin": accuracy / 2}
            records.append({"type": "eval", "iter": i, "accuracy": scores, "val_loss": 1.0})
        return write_lines(folder / "metrics.jsonl", records).parent

    return metrics


@pytest.fixture
def four(write):
    """PUMA reaches 0.5 at 100 and 200, MDM at 200 and 800: ratios 2 and 4."""
    return [
        comparison.load_run(write("puma-1", [(0, 0.0), (160, 0.8)], seed=1)),
        comparison.load_run(write("puma-2", [(0, 0.0), (320, 0.8)], seed=2)),
        comparison.load_run(write("mdm-1", [(0, 0.0), (320, 0.8)], method="mdm", seed=1)),
        comparison.load_run(write("mdm-2", [(0, 0.0), (960, 0.6)], method="mdm", seed=2)),
    ]


def tables(runs, targets=plot.targets):
    """{first cell: other cells} of both tables: what was reached, and ratios."""
    for table in comparison.comparisons(comparison.groups_of(runs), "top_k", targets):
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
        ]
        yield {first: rest for first, *rest in rows}


def load(folders):
    return [comparison.load_run(folder) for folder in folders]


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


def labelled(runs):
    return {group.label: len(group.seeds) for group in comparison.groups_of(runs)}


def test_groups_differ_in_more_than_seed_and_folder(write, four):
    other = comparison.load_run(write("lr", [(0, 0.0)], lr=0.2, method="mdm"))
    assert [*labelled([*four, other])] == [PUMA, MDM, "random masks, lr = 0.2 (1 seed)"]
    with pytest.raises(ValueError, match="same configuration and seed"):
        labelled([*four, four[0]._replace(folder="another")])


def test_the_reference_is_mdm_wherever_it_stands_else_the_last(write, four):
    other = comparison.load_run(write("lr", [(0, 0.0)], lr=0.2))
    for runs, found in (four, "mdm"), (four[::-1], "mdm"), ([*four[:2], other], "lr"):
        groups = comparison.groups_of(runs)
        for puma in groups if found == "lr" else [g for g in groups if g.method == "puma"]:
            assert found in next(iter(comparison.reference_of(puma, groups).seeds.values())).folder


def test_tables_have_crossings_and_ratios_by_seed(four):
    reached, ratios = tables([four[1], four[0], *four[2:]], [0.5])  # the seeds in another order
    assert reached["top_k accuracy"] == ["at the end", "at iter", "iterations to 0.5"]
    assert reached[PUMA][1:] == ["160, 320", f"150 [{150 - 635.3:.0f}, {150 + 635.3:.0f}]"]
    assert reached[MDM][2].startswith("500 [")
    wide = 12.706 * math.log(2) / 2
    low, high = (math.exp(math.log(8) / 2 + sign * wide) for sign in (-1, 1))
    assert ratios[PUMA][:3] == [MDM, "2", f"{math.sqrt(8):.2f} [{low:.2f}, {high:.2f}]"]
    assert list(ratios) == ["reference over group", "---", PUMA]


def test_what_is_not_reached_is_said(four):
    reached, ratios = tables(four, [0.7, 0.9])
    assert reached[MDM][2:] == ["not reached by 1 of 2", "not reached by 2 of 2"]
    assert ratios[PUMA][2:4] == ["-", "-"]


def test_a_crossing_before_the_first_evaluation_is_a_bound_without_ratio(write, four):
    late = comparison.load_run(write("late", [(300, 0.6), (600, 0.9)]))
    reached, ratios = tables([late, four[2]], [0.5])
    assert reached["PUMA (1 seed)"][2] == "<= 300"
    assert reached["random masks (1 seed)"][2] == "200"
    assert ratios["PUMA (1 seed)"][2] == "-"


def test_no_ratio_without_shared_seeds_or_with_zero_error(write, four):
    perfect = comparison.load_run(write("perfect", [(0, 0.0), (100, 1.0)], seed=2))
    _, ratios = tables([perfect, four[2]], [0.5])
    assert ratios["PUMA (1 seed)"][1:] == ["0", "-", "-", "-"]
    _, ratios = tables([perfect, four[3]], [0.5])
    assert ratios["PUMA (1 seed)"][3] == "-"


def test_keys_of_chains_do_not_tell_baselines_apart(write):
    folders = [
        write(f"{method}-{tau}", [(0, 0.0)], method=method, seed=seed, tau=tau)
        for method in ("mdm", "puma") for seed, tau in enumerate([0.9, None])
    ]  # fmt: skip
    labels = "random masks (2 seeds)", "PUMA, tau = 0.9 (1 seed)", "PUMA, no fast-forward (1 seed)"
    assert [*labelled(load(folders))] == [*labels]


def test_the_band_has_the_iterations_that_all_seeds_have(write, tmp_path, axes):
    ends = [(1, 0.0), (2, 0.5), (3, 0.9)], [(1, 0.0), (2, 0.7)]
    folders = [write(f"{seed}", points, seed=seed) for seed, points in enumerate(ends)]
    plot.learning_curves(comparison.groups_of(load(folders)), tmp_path / "a.png")
    assert np.allclose(lines(axes[0])[0], [(1, 0), (2, 0.6)])


def test_visits_are_drawn_where_a_run_says_them(write, tmp_path, axes):
    folder = write("run", [(100, 0.1), (200, 0.2)])
    with pytest.raises(ValueError, match=r"metrics\.jsonl has no visits"):
        plot.visits(comparison.groups_of(load([folder])), tmp_path / "a.png")
    axes.clear()
    file = folder / "metrics.jsonl"
    text = file.read_text().replace('"loss": 1.0', '"loss": 1.0, "visits": 2.5, "hidden": 0.5')
    file.write_text(text)
    plot.visits(comparison.groups_of(load([folder])), tmp_path / "a.png")
    drawn = [[(100, 2.5), (200, 2.5)], [(100, 0.5), (200, 0.5)], [(100, 1.0), (200, 1.0)]]
    assert [lines(each) for each in axes] == [[curve] for curve in drawn]


def test_groups_are_compared_with_random_masks_of_the_same_settings(write):
    """Iterations to 0.5: 100 against 150 with 12 clues, 100 against 50 with minimal puzzles."""
    folders = []
    for method, clues, half in (("puma", 12, 100), ("mdm", 12, 150), ("puma", None, 100)):
        points = [(0, 0.0), (half, 0.5), (2 * half, 0.8)]
        folders.append(write(f"{method}{clues}", points, method=method, clues=clues))
    folders.append(write("mdm", [(0, 0.0), (100, 1.0)], method="mdm", clues=None))
    _, found = tables(load(folders), [0.5])
    masks = "random masks, 12 clues (1 seed)"
    assert found["PUMA, 12 clues (1 seed)"] == [masks, "1", "1.50", "1.00", "+0.0"]
    assert found["PUMA, minimal puzzles (1 seed)"][2] == "0.50"


def test_what_only_puma_has_is_compared_with_one_baseline(write):
    folders = [write(f"puma{b}", [(0, 0.0), (b, 1.0)], buffer=b) for b in (100, 400)]
    folders.append(write("mdm", [(0, 0.0), (200, 1.0)], method="mdm", buffer=100))
    _, found = tables(load(folders), [0.5])
    assert [row[2] for row in list(found.values())[2:]] == ["2.00", "0.50"]


def test_runs_that_changed_or_started_differently_are_arms_of_their_own(write):
    def start(path, seed, of):
        return write(path, [(0, 0.0)], seed=seed, init_from=f"out/{of}_{seed}/checkpoint.pt")

    folders = [start("a", 1, "x"), start("b", 2, "x"), start("c", 1, "y"), start("d", 2, "y")]
    again = metrics(folders[3])[0] | {"changes": {"lr": [2, 0.1]}}
    write_lines(folders[3] / "metrics.jsonl", [*metrics(folders[3]), again])
    groups = labelled(load(folders))
    assert [*groups.values()] == [2, 1, 1] and "x_SEED" in next(iter(groups))


@pytest.fixture
def axes(monkeypatch):
    """The axes of the figures that are drawn."""
    kept, panels = [], plot.panels

    @contextlib.contextmanager
    def keep(*args, **settings):
        with panels(*args, **settings) as found:
            yield found
        kept.extend(found)

    monkeypatch.setattr(plot, "panels", keep)
    return kept


def lines(axes):
    return [list(zip(*line.get_data(), strict=True)) for line in axes.get_lines()]


def draw(name, tmp_path, folders, file, *contents):
    """A figure of runs from result files with these contents."""
    for folder, content in zip(folders, contents, strict=True):
        (folder / file).write_text(json.dumps(content))
    plot.FIGURES[name](comparison.groups_of(load(folders)), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_method_looks_the_same_in_every_figure(four, write):
    """Whatever else is drawn, and in whatever order; no two groups look alike."""
    puma, mdm, slow = four[0], four[2], [write(f"lr-{lr}", [(0, 0.0)], lr=lr) for lr in range(12)]
    for runs in [puma, mdm], [mdm, puma], [*load(slow), mdm]:
        groups = comparison.groups_of(runs)
        ways = [tuple(group.look.values()) for group in groups]
        assert len({*map(str, ways)}) == len(runs)
        for group, way in zip(groups, ways, strict=True):
            if {puma.folder, mdm.folder} & {run.folder for run in group.seeds.values()}:
                assert way == labels.LOOKS[labels.METHODS[group.method]]


def test_where_both_methods_have_several_settings_the_colour_is_the_method(write):
    settings = [(method, papl) for method in ("puma", "mdm") for papl in (0, 1, 3)]
    runs = [write(f"{m}-{papl}", [(0, 0.0)], method=m, papl=papl) for m, papl in settings]
    looks = [group.look for group in comparison.groups_of(load(runs))]
    colors = [labels.LOOKS[labels.METHODS[method]][0] for method, _ in settings]
    assert [look["color"] for look in looks] == colors
    styles = [str(look["linestyle"]) for look in looks]
    assert styles[:3] == styles[3:] and len({*styles}) == 3


def test_groups_and_tasks_are_named_in_words(write):
    one = {"k_schedule": [[0, 9]], "tau": 0.9, "box": [3, 3], "clues": None, "dataset": "sudoku"}
    other = one | {"k_schedule": [[0, 9], [80, 4]], "tau": None, "method": "puma_reverse"}
    settings = one, other, one | {"method": "mdm"}
    runs = load([write(f"{n}", [(0, 0.0)], **each) for n, each in enumerate(settings)])
    assert [*labelled(runs)] == [
        "PUMA, K = 9, tau = 0.9 (1 seed)",
        "PUMA, reverse, K = 9 to 4 by update 80, no fast-forward (1 seed)",
        "random masks (1 seed)",
    ]
    configs = [run.config for run in runs]
    assert labels.title(configs) == "9x9 Sudoku, minimal puzzles"
    configs[0]["clues"] = 30
    assert labels.title(configs) == "9x9 Sudoku"
    configs[0]["dataset"] = "addition"
    assert labels.title(configs) == ""
    assert labels.title([{"dataset": "addition", "digits": 10}]) == "10-digit addition"


def test_intervals_of_accuracies_stay_within_0_and_1(write, axes, tmp_path):
    """With two seeds at 0.8 and 0.6 the interval would reach from -0.57 to 1.97."""
    ends = {1: 0.8, 2: 0.6}
    runs = load([write(f"{seed}", [(0, 0.5), (9, end)], seed=seed) for seed, end in ends.items()])
    plot.learning_curves(comparison.groups_of(runs), tmp_path / "a.png")
    heights = axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == 0 and heights.max() == 1
    plot.final_accuracy(comparison.groups_of(runs), tmp_path / "b.png")
    (bar,) = axes[1].collections
    assert np.allclose(bar.get_segments()[0][:, 0], [0, 1])
    reached, _ = tables(runs, [0.5])
    assert reached["PUMA (2 seeds)"][0] == "0.7000 [0.0000, 1.0000]"


def test_the_figure_of_likelihoods(tmp_path, write, axes):
    folders = [write(f"puma-{seed}", [(0, 0.0)], seed=seed) for seed in (1, 2)]
    draw("nelbo", tmp_path, folders, "nelbo.json", {"per_token": 0.1}, {"per_token": 0.3})
    assert lines(axes[0])[:2] == [[(0.1, 0), (0.3, 0)], [(0.2, 0)]]


def test_figure_and_table_of_a_grid_of_samplers(tmp_path, write, axes, capsys):
    """Two seeds, the second 0.2 above; rows of older weights do not count."""
    plain = {"policy": "top_k", "reveal": 2, "tau": None, "tau_entropy": None, "temperature": 0.0}
    plain |= {"weights": 7, "tokens_per_step": 2.0}
    varied = {}, {"reveal": 10}, {"tau": 0.9}, {"temperature": 0.5}, {"tau": 0.8, "reveal": 5}
    old = plain | {"accuracy": 1.0, "policy": "margin", "weights": 6}
    one, two = (
        [old, *(plain | row | {"accuracy": n / 10 + more} for n, row in enumerate(varied))]
        for more in (0.1, 0.3)
    )
    folders = [write(f"run-{seed}", [(0, 0.0)], seed=seed) for seed in (1, 2)]
    draw("policies", tmp_path, folders, "eval.json", one, two)
    points = [point for (line, *_) in map(lines, axes) for point in line]
    assert np.allclose(points, [(0.9, 0.4), (2, 0.2), (10, 0.3), (0.5, 0.5)])
    table = capsys.readouterr().out.splitlines()
    mean = "0.2000 [0.0000, 1.0000]"  # 12.706 * 0.1 on either side, cut off
    assert table[2] == f"| PUMA (2 seeds) | top_k | 2 | None | None | 0.0 | {mean} | 2.00 |"
    assert [line.split(" | ")[2] for line in table[2:]] == ["2", "10", "2", "2", "5"]


# -- archives --------------------------------------------------------------------------------------
def test_an_archive_stands_for_its_runs(write, tmp_path):
    """Figure and table are the same bytes, and so is an archive that is made again."""
    for seed in (1, 2):
        for method, end in (("puma", 0.9), ("mdm", 0.8)):
            points = [(10, 0.1 * seed), (20, end)]
            folder = write(f"{method}_{seed}", points, seed=seed, method=method)
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
    for of_folders, of_archive in ("/*", ""), ("/mdm_*", "/mdm_*"):
        said = []
        for place in f"{tmp_path}{of_folders}", f"{archive}{of_archive}":
            picture = tmp_path / f"{len(said)}.png"
            flags = f"--runs={place}", f"--out={picture}", "--targets=[0.25]"
            said.append((run_script("studies/plot.py", *flags), picture.read_bytes()))
        assert said[0] == said[1] and "| iterations to 0.25 |" in said[0][0]
        assert said[0][1].startswith(b"\x89PNG")


def test_an_archive_takes_no_two_runs_of_one_name(write, tmp_path, refused):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    for name in ("a/puma_1", "b/puma_1"):
        write(name, [])
    pack = "studies/records.py", f"--out={tmp_path}/all.zip"
    said = refused(run_script, *pack, f"--runs={tmp_path}/a/*,{tmp_path}/b/*")
    assert f"{tmp_path}/a/puma_1 and {tmp_path}/b/puma_1 have the same name" in said
    run_script(*pack, f"--runs={tmp_path}/a/*,{tmp_path}/a/puma_1")  # one run, named twice


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "No such file"),
        (b"PK\3\4", "all.zip: File is not a zip file"),
        (b"PK\5\6" + bytes(18), "no run matches '.*all.zip'"),  # empty
    ],
)
def test_what_is_no_archive_of_runs_is_refused(content, message, tmp_path):
    if content:
        (tmp_path / "all.zip").write_bytes(content)
    with pytest.raises(SystemExit, match=message), records.folders(f"{tmp_path}/all.zip"):
        pass


# -- mistakes --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "flags, message",
    [
        ([], "no run matches ''"),
        (["--figure=curve"], "'curve': expected curves, final, visits, nelbo"),
        (["--figure=nelbo"], "nelbo.json: no such file"),
    ],
)
def test_mistakes_are_named_without_a_traceback(flags, message, four, tmp_path, refused):
    flags = [f"--runs={tmp_path}/puma-1"] * bool(flags) + flags
    assert re.search(message, refused(run_script, "studies/plot.py", *flags))


def test_runs_without_a_record_are_named(write):
    folder = write("untested", [])
    with pytest.raises(ValueError, match=r"untested: metrics\.jsonl has no evaluation"):
        comparison.load_run(folder)
    (folder / "metrics.jsonl").write_text("{\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1: not a JSON object"):
        comparison.load_run(folder)
