"""Compute the tables of docs/acceptance-sampling.md and draw its figures.

Run it from anywhere: `python docs/draw_acceptance_curves.py` rewrites the computed blocks of the page in place and
the PNG files beside it. A test recomputes every block, so the page cannot go stale. Needs the development tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from lotwise import stats
from lotwise.errors import StatisticsRefused
from lotwise.stats import hypergeometric

HERE = Path(__file__).parent
PAGE, IMAGES = HERE / "acceptance-sampling.md", HERE / "img"
BLOCK = re.compile(r"(<!-- computed: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)

INK, MUTED, GRID = "#1f2933", "#6b7785", "#e4e7eb"
RELEASE, CONTINUE, RE_REVIEW = "#2a7f62", "#c9ced6", "#c8553d"
BLUES = ("#9ec5e8", "#4a90c9", "#17507f")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table, numbers to the right."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.1f} %"


def span(interval: stats.Interval) -> str:
    return f"{100 * (interval.low or 0):.1f} to {100 * (interval.high or 0):.1f} %"


def sizes() -> str:
    lots = (1_000, 10_000, 100_000, 1_000_000)
    rows = [
        [f"{level} sure", *(f"{stats.sample_size(n, z=z).n:,}" for n in lots)]
        for level, z in (("95 %", "1.96"), ("99 %", "2.576"))
    ]
    return table(["rows in the lot", *(f"{n:,}" for n in lots)], rows)


def buys() -> str:
    rows = []
    for lot in (200, 1_000, 10_000, 1_000_000):
        plan = stats.inspection_plan(lot)
        cells = [
            span(stats.bad_rate_interval(round(share * plan.n), plan.n, population=lot))
            for share in (0.0, 0.01, 0.03, 0.10)
        ]
        rows.append([f"{lot:,}", f"{plan.n:,}", *cells])
    return table(["rows in the lot", "looked at", "0 % bad seen", "1 % seen", "3 % seen", "10 % seen"], rows)


def release_chances() -> str:
    rows = []
    for lot in (200, 1_000, 10_000, 1_000_000):
        plan = stats.inspection_plan(lot)
        chances = [percent(plan.accepts(Fraction(k, 100))) for k in (1, 2, 3, 4, 5)]
        rows.append([f"{lot:,}", f"{plan.n:,}", str(plan.c), *chances])
    heads = ["rows in the lot", "looked at", "bad allowed", *(f"truly {k} % bad" for k in (1, 2, 3, 4, 5))]
    return table(heads, rows)


def fewest() -> str:
    rows = []
    for limit in ("0.05", "0.02", "0.01"):
        for lot in (50, 1_000, 1_000_000):
            cells = []
            for c in (0, 1, 2):
                try:
                    cells.append(f"{stats.consumer_plan(lot, limit=limit, c=c).n:,}")
                except StatisticsRefused:
                    cells.append("–")
            rows.append([f"{100 * float(limit):g} %", f"{lot:,}", *cells])
    return table(["limit", "rows in the lot", "none bad", "1 bad allowed", "2 bad allowed"], rows)


def cheapest() -> str:
    rows = []
    for lot in (100, 1_000, 10_000, 1_000_000):
        plan = stats.single_plan(lot)
        chances = percent(plan.accept_at_acceptable), percent(plan.accept_at_limit)
        rows.append([f"{lot:,}", f"{plan.n:,}", str(plan.c), *chances])
    return table(["rows in the lot", "looked at", "bad allowed", "accepts at 1 %", "accepts at 5 %"], rows)


def coverage() -> str:
    methods = ("exact_finite", "clopper_pearson", "wilson", "wilson_fpc", "wald_fpc")
    rows = []
    for lot, n in ((50, 10), (100, 20), (400, 132)):
        least = [stats.finite_coverage(m, population=lot, looked=n).least for m in methods]
        rows.append([f"{n} of {lot}", *(f"**{p:.1%}**" if p < 0.95 else f"{p:.1%}" for p in least)])
    return table(["looked at", *(f"`{m}`" for m in methods)], rows)


def peeking() -> str:
    rows = []
    for lot, n, bad in ((1_000, 100, 2), (1_000, 278, 5), (10_000, 370, 4), (1_000_000, 385, 4)):
        fixed = stats.bad_rate_interval(bad, n, population=lot)
        safe = stats.peeking_set(bad, n, population=lot)
        rows.append([f"{lot:,}", str(n), str(bad), span(fixed), f"{100 * safe.low:.1f} to {100 * safe.high:.1f} %"])
    return table(["rows in the lot", "looked at", "bad seen", "one look, planned", "peeking allowed"], rows)


def worked_example() -> str:
    lot = 1_000
    plan = stats.inspection_plan(lot)
    stories = (
        (plan.n, 5, "Ana finishes the sample."),
        (plan.n, 30, "The same sample, on a bad day."),
        (60, 1, "She stops after 60 rows, as planned for a quick check."),
    )
    rows = []
    for n, bad, story in stories:
        got = stats.decide(bad, n, population=lot)
        interval = stats.bad_rate_interval(bad, n, population=lot)
        assert isinstance(interval, stats.LotInterval)
        counts = f"{interval.bad_low} to {interval.bad_high} of {lot:,}"
        chances = f"{got.p_release:.4f}", f"{got.p_re_review:.4f}"
        rows.append([story, f"{bad} of {n}", counts, percent(got.upper_one_sided), *chances, f"`{got.decision}`"])
    heads = ["what happened", "bad", "bad rows in the lot (95 %)", "sure to stay under", "*p* release", "*p* re-review"]
    return f"> {plan.in_words()}\n\n" + table([*heads, "decision"], rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "sizes": sizes,
    "buys": buys,
    "release-chances": release_chances,
    "fewest": fewest,
    "cheapest": cheapest,
    "coverage": coverage,
    "peeking": peeking,
    "worked-example": worked_example,
}


def filled(page: str) -> str:
    """Return the page with every computed block made anew."""
    return BLOCK.sub(lambda m: f"{m[1]}{BLOCKS[m['name']]()}{m[4]}", page)


def _axes(plt: Any, title: str, subtitle: str, height: float = 4.6) -> tuple[Any, Any]:
    figure, axes = plt.subplots(figsize=(8.4, height), dpi=160)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelsize=9.5, length=0, pad=6)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    figure.subplots_adjust(left=0.09, right=0.97, top=0.80, bottom=0.14)
    figure.text(0.09, 0.93, title, fontsize=14, fontweight="bold", color=INK)
    figure.text(0.09, 0.873, subtitle, fontsize=10, color=MUTED)
    return figure, axes


def draw_operating_curves(plt: Any, path: Path) -> None:
    """Chance to release against the true rate, for the default plans of three lots."""
    figure, axes = _axes(
        plt,
        "How often is a lot released?",
        "Default plans: each curve is exact for its lot, one point for every possible number of bad rows",
    )
    rates = np.arange(0, 81) / 1000
    axes.axvspan(0, 1, color=RELEASE, alpha=0.07, linewidth=0)
    axes.axvspan(5, 8, color=RE_REVIEW, alpha=0.07, linewidth=0)
    for lot, colour in zip((200, 1_000, 10_000), BLUES, strict=True):
        plan = stats.inspection_plan(lot)
        bad = np.unique(np.ceil(rates * lot - 1e-9).astype(np.int64))
        chance = hypergeometric.lower(plan.c, plan.n, lot, bad)
        label = f"{lot:,} rows: look at {plan.n}, allow {plan.c} bad"
        axes.plot(100 * bad / lot, 100 * chance, color=colour, linewidth=2.4, label=label, solid_capstyle="round")
    axes.axhline(5, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.text(7.95, 6.6, "5 % of lots at the limit", ha="right", fontsize=9, color=MUTED)
    axes.text(0.5, 12, "should\npass", ha="center", fontsize=9.5, color=RELEASE, fontweight="bold")
    axes.text(6.5, 92, "should not pass", ha="center", fontsize=9.5, color=RE_REVIEW, fontweight="bold")
    axes.set(xlim=(0, 8), ylim=(0, 102))
    axes.set_xlabel("truly bad rows in the lot, %", color=INK, fontsize=10)
    axes.set_ylabel("chance of release, %", color=INK, fontsize=10)
    axes.legend(frameon=False, fontsize=9.5, loc="upper right", bbox_to_anchor=(1.0, 0.86), labelcolor=INK)
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def draw_three_words(plt: Any, path: Path) -> None:
    """Chance of each word against the true rate, for a short and for the default sample."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 4.3), dpi=160, sharey=True)
    figure.subplots_adjust(left=0.09, right=0.97, top=0.74, bottom=0.15, wspace=0.08)
    figure.text(0.09, 0.925, "What will the word be?", fontsize=14, fontweight="bold", color=INK)
    figure.text(
        0.09,
        0.866,
        "A lot of 1,000 rows; dashed: the acceptable rate and the limit. Reading more leaves less undecided",
        fontsize=10,
        color=MUTED,
    )
    bad = np.arange(0, 101)
    for axes, n in ((left, 100), (right, 278)):
        x = np.arange(n + 1)
        words = stats.decide_many(x, n, population=1_000).decision
        chance = hypergeometric.pmf(x[None, :], n, 1_000, bad[:, None])
        shares = [100 * chance[:, words == word].sum(axis=1) for word in ("release", "continue", "re_review")]
        axes.stackplot(bad / 10, *shares, colors=(RELEASE, CONTINUE, RE_REVIEW), alpha=0.9, linewidth=0)
        for rate in (1, 5):
            axes.axvline(rate, color="white", linewidth=1.2, linestyle=(0, (3, 3)))
        axes.set(xlim=(0, 10), ylim=(0, 100))
        axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
        axes.tick_params(colors=MUTED, labelsize=9.5, length=0, pad=6)
        axes.set_title(f"{n} rows looked at", loc="left", fontsize=10.5, color=INK)
        axes.set_xlabel("truly bad rows in the lot, %", color=INK, fontsize=10)
    left.set_ylabel("chance, %", color=INK, fontsize=10)
    for axes, x, y, word, colour in (
        (left, 1.15, 8, "release", "white"),
        (left, 2.05, 38, "continue", INK),
        (left, 7.4, 76, "re_review", "white"),
        (right, 1.2, 30, "release", "white"),
        (right, 7.0, 60, "re_review", "white"),
    ):
        axes.text(x, y, word, fontsize=10.5, color=colour, fontweight="bold")
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def draw_peeking(plt: Any, path: Path) -> None:
    """One seeded reading, row by row: the interval made for one look and the set made for all."""
    lot, truth, reads = 1_000, 30, 278
    order = stats.draw([f"row-{i:04}" for i in range(lot)], reads, seed=20)
    verdicts = np.array([int(key.removeprefix("row-")) < truth for key in order])
    n, bad = np.arange(1, reads + 1), np.cumsum(verdicts)
    fixed = stats.bad_rate_intervals(bad, n, population=lot)
    safe = stats.peeking_path(list(zip(n.tolist(), bad.tolist(), strict=True)), population=lot)
    figure, axes = _axes(
        plt,
        "Looking while the reading goes on",
        "A lot of 1,000 rows with 30 bad ones, read in the order of seed 20; both at 95 %",
    )
    low, high = np.array([[100 * s.low, 100 * s.high] for s in safe]).T
    axes.fill_between(n, low, high, color=BLUES[0], alpha=0.45, linewidth=0, label="peeking-safe: holds at all looks")
    axes.plot(n, 100 * fixed.low, color=BLUES[2], linewidth=1.3)
    axes.plot(n, 100 * fixed.high, color=BLUES[2], linewidth=1.3, label="exact interval: holds at one planned look")
    axes.axhline(3, color=RE_REVIEW, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.text(4, 1.75, "the truth, 3 %", fontsize=9, color=RE_REVIEW)
    axes.set(xlim=(1, reads), ylim=(0, 25))
    axes.set_xlabel("rows looked at", color=INK, fontsize=10)
    axes.set_ylabel("bad rows in the lot, %", color=INK, fontsize=10)
    axes.legend(frameon=False, fontsize=9.5, loc="upper right", labelcolor=INK)
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    """Rewrite the computed blocks of the page and draw its figures."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["font.family"] = "DejaVu Sans"
    IMAGES.mkdir(exist_ok=True)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw_operating_curves(plt, IMAGES / "operating-curves.png")
    draw_three_words(plt, IMAGES / "three-words.png")
    draw_peeking(plt, IMAGES / "peeking.png")


if __name__ == "__main__":
    main()
