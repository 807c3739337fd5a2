"""Writes the rows of the tables of ``configs/results/README.md`` from the JSON beside it.

``python -m docs.studies.tables``. A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``. NAME is a
function below; ``kept TABLE COLUMNS ROWS`` takes a table that was kept without its run. The head stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "configs" / "results"
PAGE = RESULTS / "README.md"
MARKED = re.compile(r"(<!-- table (\S+)(?: (.*))? -->\n\|.*\n\|.*\n)(?:\|.*\n)*(<!-- end -->)")
KNOWN = {"known": "known samples", "audited": "audited samples", "nonmembers": "known non-members"}
Rows = Iterator[Sequence[Any]]


@cache
def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def bare(value: float, digits: int = 3) -> str:
    """A number as the page has it: no zero before the point."""
    return re.sub(r"^(-?)0\.", r"\1.", f"{value:.{digits}f}")


def interval(part: Any, digits: int = 3) -> str:
    """A value with its 95 % interval, of a list of three or of a ``value`` with its ``ci95``."""
    if not part:
        return ""
    value, low, high = (part["value"], *part["ci95"]) if isinstance(part, dict) else part
    return f"{bare(value, digits)} [{bare(low, digits)}, {bare(high, digits)}]"


def having(rows: Iterable[Any], **wanted: Any) -> list[Any]:
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def auc(rows: Iterable[Any], **wanted: Any) -> str:
    """The AUC of the one row with these values, or nothing."""
    found = having(rows, **wanted)
    assert len(found) <= 1, (wanted, found)
    return interval(found[0]["auc"]) if found else ""


def kept(name: str, columns: str, rows: str = "") -> Rows:
    """Some columns and rows of a table that was kept without its run."""
    found = result("kept-tables")[name]["rows"]
    for row in [found[int(number)] for number in rows.split(",")] if rows else found:
        yield [row[int(column)] for column in columns.split(",")]


def by_output(name: str) -> Rows:
    """AUC of both outputs, side by side."""
    rows = result("kept-tables")[name]["rows"]
    yield from ((on[1], on[5], under[5]) for on, under in zip(rows[:4], rows[4:8], strict=True))


def attacks_cifar10() -> Rows:
    rows = having(result("attacks-cifar10")["rows"], output="projection")
    rows = [row for row in rows if row["reference"] != "audited"]
    captions = [row for row in rows if "caption" in row.get("settings", "")]
    views = [row for row in rows if row not in captions]
    for name, mine in (("", views), (", caption", captions)):
        for attack, reference in dict.fromkeys((row["attack"], row["reference"]) for row in mine):
            found = having(mine, attack=attack, reference=reference)
            aucs = (auc(found, target=target) for target in ("simclr", "moco-v3", "clip"))
            yield attack + name, KNOWN.get(reference, reference), *aucs


def frameworks_attacks() -> Rows:
    """The last epoch; the output that the framework trains, or the backbone where it has no other."""
    rows = result("frameworks-attacks")["rows"]
    ways = [{"attack": "encodermi-t"}, {"attack": "lpla"}, {"attack": "combined", "reference": "shadow"}]
    ways += [{"attack": "white-box"}, {"attack": "clip-loss"}]
    names = {"simclr": "SimCLR", "moco-v3": "MoCo v3", "clip": "CLIP", "siglip": "SigLIP"}
    for target in ("simclr", "moco-v3", "byol", "dino", "mae", "i-jepa", "clip", "siglip"):
        cells = []
        for way in ways:
            mine = having(rows, target=target, **way)
            last = having(mine, epoch=max((row["epoch"] for row in mine), default=0))
            last = [row for row in last if "info-nce" not in row.get("settings", "")] or last
            last = [row for row in last if row["output"] != "backbone"] or last
            cells.append(interval(last[0]["auc"]) if last else "")
        yield names.get(target, target.upper()), *cells


def combined_cifar10() -> Rows:
    run = result("combined-cifar10")
    for attack, near, reference in dict.fromkeys((r["attack"], r.get("settings"), r["reference"]) for r in run["rows"]):
        wanted = {"attack": attack, "reference": reference}
        tests = having(run["from_stored_scores"]["tests"], output="projection", **wanted)
        needed = tests["128" in str(near)]["needed"]["value"]
        name = attack + (", neighbours" if "128" in str(near) else "")
        last, under = (
            auc(run["rows"], settings=near, output=output, **wanted) for output in ("projection", "backbone")
        )
        yield name, KNOWN.get(reference, reference), last, f"{needed:,}", under


def bavaria() -> Rows:
    """What it adds to `lira` or `rmia`: the one of which less is sure."""
    rows = having(result("bavaria")["rows"], attack="bavaria, t")
    for data, mode in dict.fromkeys((row["data"], row["mode"]) for row in rows):
        found = having(rows, data=data, mode=mode)
        less = [min(row["less_rmia"], row["less_lira"], key=lambda ends: ends[1]) for row in found]
        yield f"{data}, {mode}", *map(interval, less)


def pair_losses() -> Rows:
    places = [("digits", 8), ("digits", 20), ("cifar10", 5), ("cifar10", 10), ("cifar10", 20)]
    names = ("cosine", "loss, bank", "gradient, bank", "loss, bank, less cosine")
    rows = having(result("pair-losses")["rows"], encoder="saw the members")
    for name in names:
        found = [having(rows, score=name, data=data, epoch=epoch) for data, epoch in places]
        yield name, *(interval(one[0]["value"]) for one in found)


def updates() -> Rows:
    rows = result("updates")["rows"]
    for update, epoch in {row["update"]: row["epoch"] for row in rows}.items():
        found = having(rows, update=update, epoch=epoch)
        scores = ("after alone", "line", "line, less after alone")
        yield f"{update}, epoch {epoch}", *(interval(having(found, score=score)[0]["value"]) for score in scores)


def selftest_digits() -> Rows:
    """The cases of membership, from the lowest to the highest of three seeds."""
    for cases in zip(*(seed["cases"] for seed in result("selftest-digits")["seeds"].values()), strict=True):
        if "attack_auc" in cases[0]:
            verdicts = " or ".join(dict.fromkeys(case["verdict"] for case in cases))
            ways = [sorted(case[f"{one}_auc"]["value"] for case in cases) for one in ("attack", "blind", "control")]
            spans = [" to ".join(dict.fromkeys([bare(way[0]), bare(way[-1])])) for way in ways]
            yield cases[0]["planted"], verdicts, *spans


def forgetting() -> Rows:
    for share, name in {0.05: "5 %", 0.1: "10 %", 0.2: "20 %", 0.0: "none: trained anew"}.items():
        row = []
        for n, before in ((300, 0.92), (1000, 0.92), (300, 0.75), (1000, 0.75)):
            cell = having(result("forgetting")["cells"], n=n, auc_before=before, kept=share)[0]
            low, high = (100 * end for end in cell["ci95"])
            row.append(f"{cell['forgotten'] / 10:.1f} [{low:.1f}, {high:.1f}]")
        yield name, *row


def coverage() -> Rows:
    cells = having(result("coverage")["cells"], supported=True)
    for name in dict.fromkeys(cell["interval"] for cell in cells):
        row = [name.replace("_", " ")]
        for grouped in (False, True):
            mine = [cell for cell in having(cells, interval=name) if (cell["setting"]["groups"] != "none") == grouped]
            shares = [cell["coverage"] for cell in mine]
            row.append(bare(min(shares)) if shares else "")
        yield row


def bound() -> Rows:
    for name, shares in result("bound")["shares"].items():
        if name != "one attack, 1,000 a side":
            yield name, bare(shares["met"]), bare(shares["not met"])


def one_run_bounds() -> Rows:
    rows = result("one-run-bounds")["rows"]
    for mechanism, delta in {row["mechanism"]: row["delta"] for row in rows if row["mechanism"] != "laplace"}.items():
        found = having(rows, mechanism=mechanism, delta=delta)
        for name in [name for name in ("ours", "any time", "independent") if name in found[0]]:
            bounds = [bare(row[name][0], 2) for row in having(found, m=1000)]
            above = bare(max(row[name][2] for row in found if name in row))
            yield f"{mechanism.replace('_', ' ')}, delta {delta:g}", name, *bounds, above


def lots_null() -> Rows:
    for row in [row for row in result("lots-null")["rows"] if "twins" not in row["case"]]:
        yield row["case"], *(bare(row[p]["at_most_.01"]) for p in ("p_value", "any_time_p_value"))


def lots_owner() -> Rows:
    for row in result("lots-owner")["rows"]:
        yield row["owner"], *(interval([row[one]["share"], *row[one]["ci95"]], 3) for one in ("p_at_most_.01", "used"))


def lots_power() -> Rows:
    ways = ("held back, 20 %", "held back, 50 %", "captions", "all together, 20 %", CHOICE)
    for row in having(result("lots-power")["rows"], altered=None):
        needed = [(row[way]["n"] or "> 640") if way in row else "" for way in ways]
        yield f"{row['framework']}, {row['epoch']}", interval(row["auc"]), *needed


CHOICE = "by choice, checks that see nothing"


def marks() -> Rows:
    """Beside the images that both ways need for level .01 with power .8, by shares and ranks."""
    for row in result("marks")["rows"]:
        for output in [name for name in ("backbone", "projection", "prediction") if name in row]:
            found = row[output]
            share, by_images = found["ahead"] / result("marks")["pairs"], found["auc of images"]
            by_versions = 2.5 / (share - 0.5) ** 2 if found["interval"][0] > 0.5 else None
            # 1,000 used and unused images: standard error .013
            held_back = 3.3 / (by_images - 0.5) ** 2 if by_images > 0.526 else None
            shown = [f"{float(f'{n:.2g}'):,.0f}" if n else "" for n in (by_versions, held_back)]
            name = f"{row['encoder']}, {row['share of training']} %, {output}"
            yield name, interval([share, *found["interval"]]), bare(by_images), *shown


def private_captions() -> Rows:
    """By share of the training and epoch, from the lowest to the highest of the lots."""
    rows = result("private-captions")["rows"]
    for share, epoch in dict.fromkeys((row["share_of_training"], row["epoch"]) for row in rows):
        found = having(rows, share_of_training=share, epoch=epoch)
        columns = [[row["n"][k] for row in found] for k in ("1", "5")] + [[row["share"][0] for row in found]]
        ends = [(min(column), max(column)) for column in columns]
        shown = [[bare(end, 2) if isinstance(end, float) else str(end) for end in both] for both in ends]
        yield f"{100 * share:.0f} %, {epoch}", *(" to ".join(dict.fromkeys(both)) for both in shown)


def lots_union() -> Rows:
    rows = result("lots-union")["rows"]
    kinds = ((1, 0, "joined"), (1000, 0, "joined"), (200, 0, "joined"), (200, 0, "pooled"))
    for auc in (0.51, 0.52, 0.55):
        shares = [*kinds, (200, 10, "joined"), (200, 10, "pooled")]
        yield bare(auc, 2), *(interval(having(rows, auc=auc, owners=n, absent=m)[0][way]) for n, m, way in shares)


def dilution() -> Rows:
    run = result("dilution")
    for law in [law for law in run["laws"] if law["score"] != "loss" and len(law["sizes"]) > 2]:
        cells = []
        for size in (500, 2000, 8000, 32000):
            steps = law["number"] if law["equal"] == "steps" else law["number"] * size // 50
            wanted = {"framework": law["framework"], "training": str(size), "steps": steps, "score": law["score"]}
            cells.append(auc(run["rows"], **wanted) if size in law["sizes"] else "")
        yield f"{law['framework']}, {law['number']:,} {law['equal']}", *cells, interval(law["exponent"], 2)


def false_leaks() -> Rows:
    for row in having(result("false-leaks")["rows"], read=12, n=500, leak=0):
        strongest = row["case"] != "against the checks" or row["tau"] == 2
        if row.get("tau") != 0.25 and row.get("size", 20) == 20 and strongest:
            words = (("tau", "τ"), ("size", "of"), ("nonce", "nonce"))
            more = [f"{word} {row[name]}" for name, word in words if name in row]
            aucs = (bare(row[f"{one}_auc"]) for one in ("attack", "blind", "control"))
            yield ", ".join([row["case"], *more]), row["confounded"], *aucs


LIKE_ANOTHER = {
    ("used", "digits, SimCLR", "look", 0.25),
    ("used", "digits, SimCLR", "look", 1.0),
    ("used", "digits, projection", "taste", 0.25),
    ("unused", "digits, projection", "look", 0.5),
    ("unused", "digits, projection", "taste", 2.0),
}
"""Choices whose verdicts those of a weaker or a stronger choice on the page tell too."""


def by_choice() -> Rows:
    for row in result("by-choice")["rows"]:
        milder = row["case"] == "unused" and row["by"] == "taste" and row["tau"] < 2
        if row["case"] == "exchangeable" or row["tau"] == 0.1 or milder:
            continue
        if (row["case"], row["target"], row["by"], row["tau"]) in LIKE_ANOTHER:
            continue
        aucs = (bare(row[f"{one}_auc"]) for one in ("attack", "blind", "semantic", "control"))
        shares = (f"{row[verdict]['n']}/{row[verdict]['of']}" for verdict in ("leak", "confounded"))
        yield f"{row['case']}: {row['target']}", f"{row['by']}, τ {row['tau']}", *aucs, *shares


def encoder_works() -> Rows:
    run = result("encoder-works")
    for what in ("trained_called_broken", "broken_called_working", "changed_but_useful_called_broken"):
        kinds = ", ".join(f"{kind} {k['wrong']} of {k['n']}" for kind, k in run[what]["kinds"].items())
        error = f"{interval(run[what]['error'])}, n {run[what]['error']['n']}"
        yield what.replace("_", " "), error, kinds.replace("trained: ", "")


def extraction() -> Rows:
    for name, case in result("bench-extract")["cases"].items():
        ways = (case["ray"]["2"], case["naive"], case["loop"], case["encoder_only"])
        rates = (f"{way['images_per_second']['median']:,.4g}" for way in ways)
        yield name, *rates, *(bare(case[f"ray_over_{one}"], 2) for one in ("naive", "loop", "encoder_only"))


def gpu() -> Rows:
    cases = {name: case for part in result("gpu-speed")["measured"][1:] for name, case in part["cases"].items()}
    for name, case in sorted(cases.items()):
        if not re.search("at once|pixels|compiled|moco-v1, float32|tf32|1 view", name):
            ways = (case["ours"], case["in_turn"], case.get("encoder_only") or case["step"])
            rates = [way["median"] for way in ways]
            yield name, *(f"{rate:,.0f}" for rate in rates), bare(rates[0] / rates[2], 2)


def page(text: str) -> str:
    """The page with every table as the JSON has it."""

    def table(mark: re.Match[str]) -> str:
        rows: Rows = globals()[mark[2].replace("-", "_")](*(mark[3] or "").split())
        return mark[1] + "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows) + mark[4]

    return MARKED.sub(table, text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
