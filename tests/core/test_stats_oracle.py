"""Every reference case of the statistics, from one file: exact rational arithmetic and R, not this library.

The file's path is taken from LOTWISE_STATS_CASES, so that another set of the same kinds can be run; an unknown kind
fails. `error` cases are refusals: the reason must be the one that the case names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lotwise import stats
from lotwise.errors import StatisticsRefused
from lotwise.stats import distributions

OWN_CASES = Path(__file__).parent / "stats_cases.json"
CASES = Path(os.environ.get("LOTWISE_STATS_CASES", OWN_CASES))
Answer = dict[str, Any]


def fields(result: Any, *names: str) -> Answer:
    """Pick attributes of a result; its `reason` is the case's `error`."""
    answer = {name: getattr(result, name) for name in names}
    if getattr(result, "reason", None) is not None:
        answer["error"] = result.reason
    return answer


def lot(result: Any) -> Answer:
    answer = fields(result, "estimate", "low", "high")
    return answer | {"D_low": result.bad_low, "D_high": result.bad_high}


def sample_size_fpc(N: int | None, e: float, p: float, z: float) -> Answer:
    size = stats.sample_size(N, margin=e, expected_rate=p, z=z)
    return {"n": size.n, "n0": size.n_infinite}


def sample_size_confidence(N: int, e: float, p: float, confidence: float) -> Answer:
    return {"n": stats.sample_size(N, margin=e, expected_rate=p, confidence=confidence).n}


def sample_size_discovery(N: int, D: int, confidence: float) -> Answer:
    return {"n": stats.discovery_size(N, D, confidence=confidence)}


def interval(method: str) -> Callable[..., Answer]:
    def adapter(x: int, n: int, confidence: float, N: int | None = None) -> Answer:
        result = stats.bad_rate_interval(x, n, population=N, confidence=confidence, method=method)
        return lot(result) if method == "exact_finite" else fields(result, "estimate", "low", "high")

    return adapter


def ci_wilson_fpc(x: int, n: int, N: int, confidence: float) -> Answer:
    with pytest.warns(stats.FpcUndercovers):
        return interval("wilson_fpc")(x, n, confidence, N)


def ci_hypergeom_upper(x: int, n: int, N: int, confidence: float) -> Answer:
    return lot(stats.upper_bound(x, n, population=N, confidence=confidence))


def coverage_finite(method: str, N: int, n: int, confidence: float) -> Answer:
    name = {"hypergeom": "exact_finite"}.get(method, method)
    return coverage(stats.finite_coverage(name, population=N, looked=n, confidence=confidence))


def coverage(result: stats.Coverage) -> Answer:
    return {
        "min_coverage": result.least,
        "mean_coverage": result.mean,
        "D_at_min": result.bad_at_least,
        "at_least_nominal": result.at_least_nominal,
    }


def coverage_peeking(method: str, N: int, looks: list[int], confidence: float) -> Answer:
    name = {"hypergeom": "exact_finite", "cs_hypergeom": "peeking_safe"}[method]
    return coverage(stats.peeking_coverage(name, population=N, looks=looks, confidence=confidence))


def parts(strata: list[dict[str, int]]) -> list[stats.Stratum]:
    return [stats.Stratum(population=s["N"], looked=s["n"], bad=s["x"]) for s in strata]


def stratified_wald(strata: list[dict[str, int]], confidence: float) -> Answer:
    return fields(stats.stratified_wald(parts(strata), confidence=confidence), "estimate", "se", "low", "high")


def stratified_exact(strata: list[dict[str, int]], confidence: float) -> Answer:
    return lot(stats.stratified_exact(parts(strata), confidence=confidence))


def stratified_korn_graubard(strata: list[dict[str, int]], confidence: float) -> Answer:
    result = stats.stratified_korn_graubard(parts(strata), confidence=confidence)
    answer = fields(result, "low", "high")
    return answer | {"n_effective": getattr(result, "n_effective", None)}


def stratified_ws_upper(strata: list[dict[str, int]], confidence: float) -> Answer:
    return lot(stats.two_strata_upper(*parts(strata), confidence=confidence))


def dedup_rates(unique_total: int, row_total: int, sample: list[list[int]]) -> Answer:
    result = stats.dedup_rates(unique_total, [(m, bool(bad)) for m, bad in sample])
    return fields(result, "unique_rate", "row_rate", "row_se")


def oc_binomial(n: int, c: int, p: float) -> Answer:
    return {"p_accept": stats.accept_chance(n, c, rate=p)}


def oc_hypergeom(N: int, D: int, n: int, c: int) -> Answer:
    return {"p_accept": stats.accept_chance(n, c, population=N, bad_in_lot=D)}


def plan(result: stats.Plan) -> Answer:
    return {
        "n": result.n,
        "c": result.c,
        "D_aql": result.bad_at_acceptable,
        "D_ltpd": result.bad_at_limit,
        "alpha_actual": None if result.accept_at_acceptable is None else 1 - result.accept_at_acceptable,
        "beta_actual": result.accept_at_limit,
    }


def plan_binomial(aql: float, ltpd: float, alpha: float, beta: float, n_max: int = 20_000) -> Answer:
    return plan(stats.single_plan(None, acceptable=aql, limit=ltpd, alpha=alpha, beta=beta, n_max=n_max))


def plan_hypergeom(N: int, aql: float, ltpd: float, alpha: float, beta: float) -> Answer:
    return plan(stats.single_plan(N, acceptable=aql, limit=ltpd, alpha=alpha, beta=beta))


def plan_consumer(N: int, ltpd: float, beta: float, c: int) -> Answer:
    return plan(stats.consumer_plan(N, limit=ltpd, beta=beta, c=c))


def accept_number(N: int, n: int, ltpd: float, beta: float) -> Answer:
    c = stats.acceptance_number(N, n, limit=ltpd, beta=beta)
    return {"c": c, "D_ltpd": distributions.count_at(N, ltpd)[1]}


def lot_decision(N: int, n: int, x: int, aql: float, ltpd: float, confidence: float) -> Answer:
    result = stats.decide(x, n, population=N, acceptable=aql, limit=ltpd, confidence=confidence)
    return {"decision": result.decision}


def aoql_binomial(n: int, c: int, N: int | None) -> Answer:
    return {"aoql": stats.outgoing_limit_stream(n, c, population=N).rate}


def aoql_hypergeom(N: int, n: int, c: int) -> Answer:
    result = stats.outgoing_limit(n, c, population=N)
    return {"aoql": result.rate, "D_at_max": result.at_bad}


def ati_hypergeom(N: int, D: int, n: int, c: int) -> Answer:
    return {"ati": stats.average_total_inspection(n, c, population=N, bad_in_lot=D)}


def double_plan(
    n1: int, c1: int, r1: int, n2: int, c2: int, p: float | None = None, N: int | None = None, D: int | None = None
) -> Answer:
    two = stats.DoublePlan(n1=n1, c1=c1, r1=r1, n2=n2, c2=c2)
    result = stats.double_outcome(two, rate=p, population=N, bad_in_lot=D)
    return fields(result, "p_accept", "p_accept_first", "p_reject_first", "asn")


def sequential(p0: float, p1: float, alpha: float, beta: float) -> stats.SequentialPlan:
    return stats.sequential_plan(acceptable=p0, limit=p1, alpha=alpha, beta=beta)


def sprt_lines(**risks: float) -> Answer:
    result = sequential(**risks)
    answer = fields(result, "slope", "h_accept", "h_reject", "asn_slope", "n_min_accept")
    return answer | {"asn_p0": result.asn_acceptable, "asn_p1": result.asn_limit}


def sprt_truncated(p: float, n_max: int, **risks: float) -> Answer:
    result = stats.sequential_outcome(sequential(**risks), rate=p, n_max=n_max)
    return fields(result, "p_accept", "p_reject", "p_undecided", "asn")


def sprt_decision(bad: list[int], **risks: float) -> Answer:
    return fields(stats.sequential_decision(sequential(**risks), bad), "decision", "n")


def code_letter(lot_size: int, level: str) -> Answer:
    return {"letter": stats.code_letter(lot_size, level=level)}


def attribute_plan(lot_size: int, level: str, aql_percent: float, severity: Any) -> Answer:
    result = stats.attribute_plan(lot_size, level=level, aql_percent=aql_percent, severity=severity)
    return fields(result, "letter_start", "letter_used", "n", "ac", "re", "inspect_all")


def switching(lots: list[dict[str, Any]]) -> Answer:
    result = stats.switching(stats.InspectedLot(**lot) for lot in lots)
    return {
        "states": list(result.states),
        "final_state": result.final_state,
        "scores_after": list(result.scores_after),
    }


def rogan_gladen(p_obs: float, sensitivity: float, specificity: float) -> Answer:
    return fields(stats.rogan_gladen(p_obs, sensitivity=sensitivity, specificity=specificity), "raw", "clipped")


def rogan_gladen_ci_known(x: int, n: int, sensitivity: float, specificity: float, confidence: float) -> Answer:
    result = stats.rogan_gladen_known(x, n, sensitivity=sensitivity, specificity=specificity, confidence=confidence)
    return fields(result, "estimate", "low", "high")


def rogan_gladen_ci_estimated(x: int, n: int, tp: int, n_pos: int, tn: int, n_neg: int, confidence: float) -> Answer:
    result = stats.rogan_gladen_estimated(
        x, n, true_positive=tp, positives=n_pos, true_negative=tn, negatives=n_neg, confidence=confidence
    )
    return fields(result, "estimate", "low", "high")


def ppi_mean(n_unlabeled: int, judged_bad_unlabeled: int, lam: Any, confidence: float, **cells: int) -> Answer:
    result = stats.ppi_mean(
        stats.Labels(**cells),
        unlabeled=n_unlabeled,
        unlabeled_judged_bad=judged_bad_unlabeled,
        lam=lam,
        confidence=confidence,
    )
    return fields(result, "lam", "estimate", "se", "low", "high")


def difference_lot(N: int, judged_bad: int, confidence: float, **cells: int) -> Answer:
    labels = stats.Labels(**cells)
    result = stats.difference_estimate(labels, population=N, judged_bad=judged_bad, confidence=confidence)
    return fields(result, "estimate", "se", "low", "high")


def cohen_kappa(table: list[list[int]], confidence: float) -> Answer:
    result = stats.cohen_kappa(table, confidence=confidence)
    return fields(result, "observed", "chance", "kappa", "se", "low", "high")


def krippendorff_nominal(units: list[list[Any]]) -> Answer:
    return {"alpha": stats.krippendorff_nominal(units)}


def mcnemar(b: int, c: int) -> Answer:
    return fields(stats.mcnemar(b, c), "p_exact", "p_midp")


def paired(function: Callable[..., stats.Difference]) -> Callable[..., Answer]:
    def adapter(a: int, b: int, c: int, d: int, confidence: float) -> Answer:
        return fields(function(stats.Pairs(a=a, b=b, c=c, d=d), confidence=confidence), "diff", "low", "high")

    return adapter


def mcnemar_n(p10: float, p01: float, alpha: float, power: float) -> Answer:
    return fields(stats.mcnemar_size(p10, p01, alpha=alpha, power=power), "n", "n_raw")


def mcnemar_power_exact(n: int, p10: float, p01: float, alpha: float) -> Answer:
    return {"power": stats.mcnemar_power(n, p10, p01, alpha=alpha)}


def adjust_p(p: list[float], method: str) -> Answer:
    return {"adjusted": {"holm": stats.holm, "bh": stats.benjamini_hochberg}[method](p).tolist()}


def p_chart(p_bar: float, n: int, k: float) -> Answer:
    return fields(stats.p_chart(p_bar, n, k=k), "lcl", "ucl")


def mean_band(values: list[float], k: float) -> Answer:
    result = stats.mean_band(values, k=k)
    return {"mean": result.mean, "sd": result.sd, "low": result.low, "high": result.high}


def ewma(x: list[float], lam: float, L: float, mu0: float, sigma: float) -> Answer:
    result = stats.ewma(x, lam=lam, width=L, mu0=mu0, sigma=sigma)
    series = {name: list(getattr(result, name)) for name in ("z", "lcl", "ucl")}
    return series | {"first_signal": result.first_signal}


def cusum(x: list[float], target: float, k: float, h: float) -> Answer:
    result = stats.cusum(x, target=target, k=k, h=h)
    return {
        "c_plus": list(result.c_plus),
        "c_minus": list(result.c_minus),
        "first_signal": result.first_signal,
    }


def cusum_binomial(x: list[int], n: list[int], p0: float, p1: float, h: float) -> Answer:
    result = stats.cusum_binomial(x, n, usual=p0, worse=p1, h=h)
    return {"s": list(result.s), "first_signal": result.first_signal}


def cs_hypergeom(N: int, n: int, x: int, alpha: float) -> Answer:
    return lot(stats.peeking_set(x, n, population=N, confidence=1 - distributions.exact(alpha)))


def cs_hypergeom_path(N: int, path: list[list[int]], alpha: float) -> Answer:
    looks = [(n, x) for n, x in path]
    sets = stats.peeking_path(looks, population=N, confidence=1 - distributions.exact(alpha))
    return {"intervals": [[s.bad_low, s.bad_high] for s in sets]}


def cascade_fixed_sequence(target_error: float, delta: float, levels: list[dict[str, Any]]) -> Answer:
    result = stats.cascade_threshold(
        [stats.Calibration(**level) for level in levels], target_error=target_error, delta=delta
    )
    return {"p_values": list(result.p_values), "threshold": result.threshold}


ADAPTERS: dict[str, Callable[..., Answer]] = {
    function.__name__: function
    for function in (
        sample_size_fpc,
        sample_size_confidence,
        sample_size_discovery,
        ci_wilson_fpc,
        ci_hypergeom_upper,
        coverage_finite,
        coverage_peeking,
        stratified_wald,
        stratified_exact,
        stratified_korn_graubard,
        stratified_ws_upper,
        dedup_rates,
        oc_binomial,
        oc_hypergeom,
        plan_binomial,
        plan_hypergeom,
        plan_consumer,
        accept_number,
        lot_decision,
        aoql_binomial,
        aoql_hypergeom,
        ati_hypergeom,
        double_plan,
        sprt_lines,
        sprt_truncated,
        sprt_decision,
        code_letter,
        attribute_plan,
        switching,
        rogan_gladen,
        rogan_gladen_ci_known,
        rogan_gladen_ci_estimated,
        ppi_mean,
        difference_lot,
        cohen_kappa,
        krippendorff_nominal,
        mcnemar,
        mcnemar_n,
        mcnemar_power_exact,
        adjust_p,
        p_chart,
        mean_band,
        ewma,
        cusum,
        cusum_binomial,
        cs_hypergeom,
        cs_hypergeom_path,
        cascade_fixed_sequence,
    )
} | {
    "ci_wilson": interval("wilson"),
    "ci_clopper_pearson": interval("clopper_pearson"),
    "ci_jeffreys": interval("jeffreys"),
    "ci_hypergeom": interval("exact_finite"),
    "paired_diff_newcombe": paired(stats.newcombe),
    "paired_diff_tango": paired(stats.tango),
    "paired_diff_bonett_price": paired(stats.bonett_price),
}


def close(got: Any, expected: Any, tol: float) -> bool:
    """Discrete values are equal; floats agree within tol, or relatively within 1e-9 above one."""
    if isinstance(expected, list):
        return len(got) == len(expected) and all(close(g, e, tol) for g, e in zip(got, expected, strict=True))
    if isinstance(expected, bool) or not isinstance(expected, float):
        return bool(got == expected) and isinstance(got, bool) == isinstance(expected, bool)
    if got is None:
        return False
    return abs(got - expected) <= max(tol, 1e-9 * abs(expected) if abs(expected) > 1 else 0.0)


LOADED = json.loads(CASES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", LOADED, ids=lambda case: f"{case['kind']}-{case['id']}")
def test_reference_case_is_met(case: dict[str, Any]) -> None:
    assert case["kind"] in ADAPTERS, f"no adapter for kind {case['kind']!r}: add one, do not drop the case"
    expected = case["expected"]

    refused = None
    try:
        got = ADAPTERS[case["kind"]](**case["inputs"])
    except StatisticsRefused as error:
        refused, got = error.reason, {"error": error.reason, **error.facts}

    assert refused in (None, expected.get("error")), "refused a case that has an answer"
    wrong = {k: (got.get(k), v) for k, v in expected.items() if not close(got.get(k), v, case["tol"])}
    assert not wrong, f"{case['kind']}: (got, expected) {wrong}"


def test_every_adapter_has_a_case() -> None:
    own = json.loads(OWN_CASES.read_text(encoding="utf-8"))
    assert {case["kind"] for case in own} == set(ADAPTERS)
