"""The best solution of one problem."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, update

from backends.outcome import Outcome, Phase, Status
from backends.registry import BACKENDS
from backends.solution import Solution
from db import models, sessions
from db.best import refresh_best, touch
from db.engine import writing
from db.values import put_solutions, table
from service import answers
from service.best import MAX_TRIED
from service.imports import import_file
from service.settings import Settings
from tests.db import samples
from tests.service.http.filled import (
    CLASS,
    ENVIRONMENT,
    GPU,
    HUNGRY,
    candidates,
    fill,
    measured,
    problem,
    register,
)
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of, fits
from tests.service.http.uploads import RESULTS, stream
from tuners.policy import MODES, MeasurementPolicy

URL = "/v1/solutions/best"
MI300X = replace(GPU, vendor="hip", arch="gfx942", product="MI300X", units=304)
ONE = {"m": 16, "n": 256, "k": 512}


def best(client: httpx.Client, **parameters: Any) -> Any:
    return fits(answers.Best, client.get(URL, params={**ONE, **parameters}))


def best_of_many(client: httpx.Client, **parameters: Any) -> Any:
    answered = fits(answers.BestAnswers, client.post(URL, json={"problems": [ONE], **parameters}))
    return answered["results"][0]


# ---- exact -----------------------------------------------------------------------------------------


def test_an_exact_answer_is_the_stored_document(filled: httpx.Client) -> None:
    found = best(filled)
    fastest = candidates(problem(**ONE))[0]
    assert found["match"] == "exact"
    assert found["problem_id"] == problem(**ONE).id
    assert found["problem"] == {**ONE, "dtype": "fp32"}
    assert (found["solution"]["id"], found["solution"]["workspace_bytes"]) == (fastest.id, HUNGRY)
    assert found["judgement"] == "WIN"
    assert found["speedup"]["mid"] == pytest.approx(2.0)
    assert found["baseline"]["name"] == "numpy"
    assert found["provenance"] == {"kind": "measured", "source": None}
    assert (found["device_class"], found["session_id"][:4]) == (CLASS, "nn_2")
    assert "alternative" not in found


@pytest.mark.parametrize(
    "written",
    [
        {"m": 16, "n": 256, "k": 512, "dtype": "bf16", "trans_b": "true", "epilogue": "bias_relu"},
        {"m": 16, "n": 256, "k": 512, "dtype_a": "bf16", "trans_b": "1", "trans_a": "0",
         "epilogue": '{"bias":true,"activation":"relu"}', "layout": "row", "beta": "0", "alpha": "1.0"},
        {"m": 256, "n": 16, "k": 512, "dtype": "bfloat16", "trans_a": "T", "layout": "col",
         "epilogue": '{"activation":"relu","bias":"bf16","bias_axis":"m"}', "alignment": "16", "batch": "1"},
    ],
)  # fmt: skip
def test_a_problem_may_be_written_in_many_ways(filled: httpx.Client, written: dict[str, str]) -> None:
    found = fits(answers.Best, filled.get(URL, params=written))
    assert found["match"] == "exact"
    wanted = problem(16, 256, 512, dtype="bf16", trans_b=True, epilogue="bias_relu")
    assert found["problem_id"] == wanted.id


def test_strides_and_scaling_are_json_text(filled: httpx.Client) -> None:
    batch = {"m": 8, "n": 64, "k": 64, "batch": 4}
    packed = json.dumps({"a": 512, "b": 4096, "c": 512, "d": 512})
    assert best(filled, **batch, strides=packed)["match"] == "exact"
    assert best(filled, **batch, strides='{"a":0}')["match"] != "exact"
    assert best(filled, dtype="fp8_e4m3", scaling='{"a":"tensor","b":"tensor"}')["match"] == "default"


@pytest.mark.parametrize("device", ["cpu:x86_64", CLASS, CLASS.upper(), " cpu:x86_64:AMD-EPYC-9B14 "])
def test_a_device_is_a_selector(filled: httpx.Client, device: str) -> None:
    assert best(filled, device=device)["match"] == "exact"


def test_a_policy_is_an_id_or_mode_and_cache(filled: httpx.Client) -> None:
    assert best(filled, policy=MeasurementPolicy().id)["match"] == "exact"
    assert best(filled, mode="eager", cache="cold")["match"] == "exact"
    warm = best(filled, cache="warm")
    assert (warm["match"], warm["policy_id"]) == ("default", MeasurementPolicy(cache="warm").id)
    assert best(filled, policy="eager-cold-normal-00000000")["match"] == "default"


@pytest.mark.parametrize("way", [best, best_of_many], ids=["GET", "POST"])
def test_without_a_mode_a_gpu_answers_what_graphs_timed(
    client: httpx.Client, engine: Engine, way: Any
) -> None:
    register(engine, ENVIRONMENT, GPU)
    modes = {mode: MeasurementPolicy(mode=mode) for mode in MODES}
    with writing(engine) as connection:
        for policy in modes.values():
            measured(connection, problem(**ONE), environment=GPU, policy=policy)
        measured(connection, problem(**ONE))
    assert way(client, device="cuda")["policy_id"] == modes["graph"].id
    assert way(client, device="cuda", mode="eager")["policy_id"] == modes["eager"].id
    assert way(client, device="cpu")["policy_id"] == modes["eager"].id
    assert way(client, device="cpu", mode="graph")["match"] == "default"


def test_an_answer_is_tagged(filled: httpx.Client) -> None:
    first = filled.get(URL, params=ONE)
    tag = first.headers["etag"]
    assert tag.startswith('W/"')
    for known in (tag, f'"x", {tag}', tag.removeprefix("W/"), "*"):
        again = filled.get(URL, params=ONE, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    for other in ('W/"x"', "", tag[:-2]):
        assert filled.get(URL, params=ONE, headers={"If-None-Match": other}).status_code == 200
    assert filled.get(URL, params={**ONE, "n": 512}).headers["etag"] != tag


def test_a_new_verdict_changes_answer_and_tag(client: httpx.Client, engine: Engine) -> None:
    with writing(engine) as connection:
        measured(connection, problem(**ONE))
    first = client.get(URL, params=ONE)
    with writing(engine) as connection:
        measured(connection, problem(**ONE), job_id="job-later", scale=5e-4)
    second = client.get(URL, params=ONE, headers={"If-None-Match": first.headers["etag"]})
    assert second.status_code == 200
    assert second.json()["seconds"] < first.json()["seconds"]


# ---- filters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "filters",
    [{"max_workspace": HUNGRY - 1}, {"deterministic": "true"}, {"families": "stream,unknown"}],
    ids=str,
)
def test_who_must_not_use_the_winner_gets_the_fastest_he_may(
    filled: httpx.Client, filters: dict[str, Any]
) -> None:
    found = best(filled, **filters)
    second = candidates(problem(**ONE))[1]
    assert found["match"] == "exact"
    assert found["solution"]["id"] == second.id
    assert (found["alternative"], found["verified"], found["phase"]) == (True, "one seed", "final")
    assert (found["judgement"], found["speedup"], found["roofline"]) == (None, None, None)
    assert candidates(problem(**ONE))[0].id in found["reason"]


@pytest.mark.parametrize(
    "filters", [{"max_workspace": HUNGRY}, {"deterministic": "false"}, {"families": "packed"}], ids=str
)
def test_a_winner_that_meets_the_filters_stays(filled: httpx.Client, filters: dict[str, Any]) -> None:
    plain = best(filled)
    assert best(filled, **filters) == plain


def test_what_failed_its_proof_is_no_alternative(client: httpx.Client, engine: Engine) -> None:
    asked = problem(**ONE)
    second, third = candidates(asked)[1:]
    with writing(engine) as connection:
        session_id = measured(connection, asked)
        wrong = Outcome(second, Phase.PROOF, Status.WRONG_RESULT, (), {"seed": 3})
        sessions.append_outcomes(connection, session_id, [wrong], 2, Counter())
    assert best(client, max_workspace=0)["solution"]["id"] == third.id


def test_where_nothing_meets_the_filters_it_says_so(filled: httpx.Client) -> None:
    found = best(filled, families="nothing")
    assert found["match"] == "default"
    assert found["solution"] is None
    assert "does not meet the filters" in found["notes"][0]


# ---- nearest ---------------------------------------------------------------------------------------


def test_a_near_problem_answers_with_its_distance_and_regret(filled: httpx.Client) -> None:
    found = best(filled, m=24)
    assert found["match"] == "nearest"
    assert found["problem"]["m"] == 32  # log2(32 / 24) < log2(24 / 16)
    assert found["distance"] == pytest.approx(0.415, abs=1e-3)
    assert found["asked"] == {**ONE, "m": 24, "dtype": "fp32"}
    assert found["asked_id"] == problem(24, 256, 512).id
    assert found["transfer_regret"] == {"median": 0.0, "p80": 0.0, "pairs": 5}  # it won there, too
    assert found["judgement"] == "WIN"


def test_only_the_same_kind_is_near(filled: httpx.Client) -> None:
    for other in ({"dtype": "bf16"}, {"trans_b": "true"}, {"dtype": "fp64"}, {"epilogue": "relu"}):
        assert best(filled, m=24, **other)["match"] == "default"


@pytest.mark.parametrize("known", [False, True])
def test_stored_and_prepacked_weights_are_not_near(client: httpx.Client, engine: Engine, known: bool) -> None:
    """A kernel that reads packed weights is illegal for stored ones, and a prepacked problem has a winner of
    its own."""
    scaling = {"b": "group_64", "dtype": "bf16"}
    how: dict[str, Any] = {"n": 64, "k": 256, "dtype": "bf16", "dtype_b": "uint4", "trans_b": True}
    near = problem(16, **how, scaling=scaling, prepacked=known)
    winner = Solution("dequantise", 1, {"threads": 1}, samples.HERE.libraries["blas"], 0, True)
    with writing(engine) as connection:
        samples.store_session(connection, samples.start(near), winner)
    asked = {**how, "m": 24, "scaling": json.dumps(scaling), "device": samples.CLASS}
    found = fits(answers.Best, client.get(URL, params={**asked, "prepacked": known}))
    assert (found["match"], found["problem_id"]) == ("nearest", near.id)
    assert found["asked"].get("prepacked", False) is known
    for m in (16, 24):
        other = fits(answers.Best, client.get(URL, params={**asked, "m": m, "prepacked": not known}))
        assert other["match"] == "default"
        assert near.id not in str(other)


@pytest.mark.parametrize("known", ["none", "swiglu"])
def test_products_with_and_without_swiglu_are_not_near(
    client: httpx.Client, engine: Engine, known: str
) -> None:
    """A search tries what the other one ran; an answer is of the same kind."""
    how: dict[str, Any] = {"n": 48, "k": 64, "dtype": "bf16", "trans_b": True, "groups": 4}
    near, other = problem(16, **how, epilogue=known), "swiglu" if known == "none" else "none"
    winner = Solution("numpy-grouped", 1, {"threads": 1}, samples.HERE.libraries["blas"], 0, True)
    with writing(engine) as connection:
        samples.store_session(connection, samples.start(near), winner)
    asked = {**how, "device": samples.CLASS}
    found = fits(answers.Best, client.get(URL, params={**asked, "m": 24, "epilogue": known}))
    assert (found["match"], found["problem_id"]) == ("nearest", near.id)
    for m in (16, 24):
        answered = fits(answers.Best, client.get(URL, params={**asked, "m": m, "epilogue": other}))
        assert answered["match"] == "default"
        assert near.id not in str(answered)


def test_one_doubling_of_the_tokens_is_the_farthest_and_half_a_doubling_of_other_sizes(
    filled: httpx.Client,
) -> None:
    assert best(filled, m=8)["distance"] == 1.0
    assert best(filled, k=720)["distance"] < 0.5
    for asked, weights in (
        ({"m": 7}, "the same weights at most 1"),
        ({"k": 736}, "other weights at most 0.5"),
    ):
        found = best(filled, **asked)
        assert found["match"] == "default"
        assert weights in found["notes"][0]
    assert best(filled, m=1)["match"] == "default"


def test_a_near_problem_whose_default_won_is_passed_over(client: httpx.Client, engine: Engine) -> None:
    near = problem(**ONE)
    with writing(engine) as connection:
        measured(connection, near)
        verdict = table(models.Verdict)
        its = verdict.c.problem_id == near.id
        connection.execute(update(verdict).where(its).values(baseline_id=verdict.c.winner_id))
        refresh_best(connection, near.id, CLASS, MeasurementPolicy().id)
    found = best(client, m=24)
    assert (found["match"], found["notes"]) == ("default", [f"{near.id}: its default is the fastest there"])


def test_a_solution_that_was_slow_elsewhere_or_never_timed_there_is_not_served(
    client: httpx.Client, engine: Engine
) -> None:
    near, other = problem(**ONE), problem(16, 288, 512)
    with writing(engine) as connection:
        measured(connection, near)
    found = best(client, n=288)
    assert found["notes"] == [
        f"{near.id}: its weights are others, and its solution was timed on no other near problem"
    ]
    with writing(engine) as connection:
        measured(connection, problem(16, 272, 512))
        measured(connection, other)
    assert best(client, n=304)["match"] == "nearest"
    winner = candidates(near)[0].id
    with writing(engine) as connection:
        row = table(models.Measurement)
        connection.execute(update(row).where(row.c.solution_id == winner).values(seconds=row.c.seconds * 1.9))
    found = best(client, n=304)
    assert found["match"] == "default"
    assert "slower than the best on other near problems" in found["notes"][0]


def test_the_batch_counts_as_a_size(filled: httpx.Client) -> None:
    batch = {"m": 8, "n": 64, "k": 64}
    assert best(filled, **batch, batch=8)["distance"] == 1.0
    assert best(filled, **batch, batch=17)["match"] == "default"


def test_one_pair_or_none_for_the_regret(client: httpx.Client, engine: Engine) -> None:
    with writing(engine) as connection:
        measured(connection, problem(**ONE))
    assert best(client, m=24)["transfer_regret"] is None
    with writing(engine) as connection:
        measured(connection, problem(64, 256, 512))
    assert best(client, m=24)["transfer_regret"] == {"median": 0.0, "p80": 0.0, "pairs": 1}


def test_a_solution_that_is_illegal_here_is_passed_over(client: httpx.Client, engine: Engine) -> None:
    near, far = problem(20, 256, 512), problem(16, 256, 512)
    with writing(engine) as connection:
        measured(connection, near)
        measured(connection, far)
        parameters = {**candidates(near)[0].parameters, "threads": 64}
        made = Solution("packed", 1, parameters)
        put_solutions(connection, [made])
        winner = table(models.Verdict)
        connection.execute(update(winner).where(winner.c.problem_id == near.id).values(winner_id=made.id))
        refresh_best(connection, near.id, CLASS, MeasurementPolicy().id)
    found = best(client, m=22)
    assert (found["match"], found["problem_id"]) == ("nearest", far.id)
    note, workspace = found["notes"]
    assert near.id in note
    assert "threads must be between 1 and the 2 cores" in note
    assert workspace == f"workspace_bytes is what the solution took for {far.id}"


def test_filters_hold_for_near_problems_too(filled: httpx.Client) -> None:
    found = best(filled, m=24, max_workspace=0)
    assert (found["match"], found["alternative"]) == ("nearest", True)
    assert found["solution"]["workspace_bytes"] == 0


def test_a_near_solutions_workspace_grows_with_the_problem(client: httpx.Client, engine: Engine) -> None:
    with writing(engine) as connection:
        measured(connection, problem(**ONE))
    fastest = candidates(problem(**ONE))[0].id
    found = best(client, m=24, max_workspace=HUNGRY * 3 // 2)
    assert (found["match"], found["solution"]["id"]) == ("nearest", fastest)
    assert found["solution"]["workspace_bytes"] == HUNGRY
    assert found["notes"] == [f"workspace_bytes is what the solution took for {problem(**ONE).id}"]
    found = best(client, m=24, max_workspace=HUNGRY * 3 // 2 - 1)
    assert (found["match"], found["alternative"]) == ("nearest", True)
    assert (found["solution"]["workspace_bytes"], found["notes"]) == (0, [])
    assert best(client, m=24, max_workspace=HUNGRY - 1, families="packed")["solution"]["id"] != fastest
    # A smaller problem may take as much as the near one did.
    assert best(client, m=8, max_workspace=HUNGRY)["solution"]["id"] == fastest
    assert best(client, m=8, max_workspace=HUNGRY - 1)["solution"]["id"] != fastest


@pytest.mark.parametrize("asked", [{"n": 257}, {"n": 258}, {"k": 511}, {"ldd": 257}], ids=str)
def test_a_near_problem_is_aligned_as_the_one_asked(
    client: httpx.Client, engine: Engine, asked: dict[str, int]
) -> None:
    with writing(engine) as connection:
        measured(connection, problem(**ONE))
    found = best(client, **asked)
    assert found["match"] == "default"
    (note,) = found["notes"]
    assert note == f"{problem(**ONE).id}: its operands are aligned to other bytes than those asked for"
    same = {**ONE, **asked, "m": 20}
    with writing(engine) as connection:
        measured(connection, problem(**same))
    assert best(client, **asked)["problem_id"] == problem(**same).id


def test_a_batchs_strides_count_for_its_alignment(client: httpx.Client, engine: Engine) -> None:
    batch = {"m": 8, "n": 64, "k": 64, "batch": 4}
    odd = {"a": 513, "b": 4096, "c": 512, "d": 512}
    with writing(engine) as connection:
        measured(connection, problem(**batch))
    assert best(client, **batch, strides=json.dumps(odd))["match"] == "default"
    assert best(client, **{**batch, "m": 4})["match"] == "nearest"


def test_alignment_is_looked_for_beyond_the_nearest(client: httpx.Client, engine: Engine) -> None:
    with writing(engine) as connection:
        for m in range(65, 65 + MAX_TRIED + 4):
            measured(connection, problem(m, 256, 512))
        measured(connection, problem(100, 257, 512))
    assert best(client, m=64, n=257)["problem"] == {"m": 100, "n": 257, "k": 512, "dtype": "fp32"}


def test_what_proved_not_deterministic_is_left_out(client: httpx.Client, engine: Engine) -> None:
    asked, other = problem(**ONE), problem(64, 256, 512)
    second = candidates(asked)[1]
    with writing(engine) as connection:
        measured(connection, asked)
    assert best(client, deterministic="true")["solution"]["id"] == second.id
    with writing(engine) as connection:
        session_id = measured(connection, other)
        found = replace(second, deterministic=False)
        odd = Outcome(found, Phase.FINAL, Status.OK, (1e-3,))
        sessions.append_outcomes(connection, session_id, [odd], 2, Counter())
    answered = best(client, deterministic="true")["solution"]
    assert answered is None or answered["id"] != second.id


def test_without_the_backend_nothing_near_is_judged(
    client: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(engine, MI300X)
    monkeypatch.delitem(BACKENDS, "hip")  # an installation that lacks it
    with writing(engine) as connection:
        measured(connection, problem(**ONE), environment=ENVIRONMENT)
        touch(connection, CLASS)
    time.sleep(1.1)  # classes are looked up once a second
    found = best(client, m=24, device="hip")
    assert found["match"] == "default"
    assert "the backend hip is not part of this installation" in found["notes"][0]


# ---- default and imported --------------------------------------------------------------------------


def test_the_default_says_what_was_asked(filled: httpx.Client) -> None:
    found = best(filled, m=4096)
    assert found["match"] == "default"
    assert found["asked"] == {"m": 4096, "n": 256, "k": 512, "dtype": "fp32"}
    assert found["device_class"] == CLASS
    assert problem(4096, 256, 512).slug in found["reason"]


def test_claims_are_served_only_where_asked_for(client: httpx.Client, engine: Engine) -> None:
    device = str(MI300X.device_class)
    import_file(engine, stream(RESULTS), "results.csv", "tunableop", device, "node-3")
    asked: dict[str, Any] = {"m": 1024, "n": 1024, "k": 1024, "dtype": "bf16", "device": "hip"}
    assert best(client, **asked)["match"] == "default"
    found = best(client, **asked, imported="true")
    assert found["match"] == "imported"
    assert found["provenance"] == {"kind": "imported", "source": "node-3", "format": "tunableop"}
    assert found["solution"]["family"] == "rocblas"
    assert found["seconds"] == pytest.approx(1.05563e-5)
    assert best(client, **asked, imported="true", families="packed")["match"] == "default"
    del asked["device"]
    with writing(engine) as connection:
        measured(connection, problem(**asked), environment=MI300X, policy=MeasurementPolicy.of("hip"))
    assert best(client, **asked, device="hip", imported="true")["match"] == "exact"


# ---- what is no question ---------------------------------------------------------------------------

BAD = [
    ("m=16&n=256", "k"),
    ("m=16&n=256&k=0", "k"),
    ("m=16&n=256&k=", "k"),
    ("m=16&n=256&k=1_0", "k"),
    ("m=16&n=256&k=1.0", "k"),
    ("m=16&n=256&k=%EF%BC%91", "k"),
    ("m=16&n=256&k=99999999999999999999999", "k"),
    ("m=16&n=256&k=1&k=2", "k"),
    ("m=16&n=256&k=1&K=2", "K"),
    ("m=16&n=256&k=1&dtype=fp17", "dtype"),
    ("m=16&n=256&k=1&dtype=a%00b", "dtype"),
    ("m=16&n=256&k=1&trans_a=yes", "trans_a"),
    ("m=16&n=256&k=1&alpha=nan", "alpha"),
    ("m=16&n=256&k=1&alpha=1e999", "alpha"),
    ("m=16&n=256&k=1&beta=inf", "beta"),
    ("m=16&n=256&k=1&strides=", "strides"),
    ("m=16&n=256&k=1&strides=[]", "strides"),
    ("m=16&n=256&k=1&strides={", "strides"),
    ("m=16&n=256&k=1&strides=%7B%22z%22:1%7D", "strides"),
    ("m=16&n=256&k=1&epilogue={}x", "epilogue"),
    ("m=16&n=256&k=1&epilogue=softmax", "epilogue"),
    ("m=16&n=256&k=1&scaling=%7B%22a%22:%22x%22%7D", "scaling"),
    ("m=16&n=256&k=1&fast_accumulation=2", "fast_accumulation"),
    ("m=16&n=256&k=2&lda=1", "lda"),
    ("m=16&n=256&k=1&layout=diagonal", "layout"),
    ("m=16&n=256&k=1&max_workspace=-1", "max_workspace"),
    ("m=16&n=256&k=1&max_workspace=9223372036854775808", "max_workspace"),
    ("m=16&n=256&k=1&deterministic=yes", "deterministic"),
    ("m=16&n=256&k=1&families=", "families"),
    ("m=16&n=256&k=1&families=a,,b", "families"),
    ("m=16&n=256&k=1&imported=perhaps", "imported"),
    ("m=16&n=256&k=1&strides=%7B%22a%22:1,%22a%22:2%7D", "strides"),
    ("m=16&n=256&k=1&mode=fast", "mode"),
    ("m=16&n=256&k=1&mode=", "mode"),
    ("m=16&n=256&k=1&cache=", "cache"),
    ("m=16&n=256&k=1&cache=hot", "cache"),
    ("m=16&n=256&k=1&policy=x&mode=eager", "policy"),
    ("m=16&n=256&k=1&policy=%00", "policy"),
    ("m=16&n=256&k=1&=1", ""),
]


@pytest.mark.parametrize(("query", "parameter"), BAD)
def test_what_is_no_question_names_the_parameter(filled: httpx.Client, query: str, parameter: str) -> None:
    fault = fault_of(filled.get(f"{URL}?{query}"), 422)
    assert parameter in [part.get("parameter") for part in fault["errors"]]


def test_unknown_parameters_are_told_the_known_ones(filled: httpx.Client) -> None:
    fault = fault_of(filled.get(f"{URL}?m=1&n=1&k=1&transb=1&x=2"), 422)
    assert [part["parameter"] for part in fault["errors"]] == ["transb", "x"]
    assert "trans_b" in fault["errors"][0]["detail"]


def test_devices_that_match_none_or_several(filled: httpx.Client) -> None:
    fault = fault_of(filled.get(URL, params={**ONE, "device": "hip"}), 404)
    assert CLASS in fault["available"]
    fault = fault_of(filled.get(URL, params={**ONE, "device": "cpu"}), 409)
    assert len(fault["classes"]) == 2
    for strange in ("", ":", "\0", "cpu:", "%", "\U0001f600", "x" * 3000):
        assert filled.get(URL, params={**ONE, "device": strange}).status_code == 404


def test_bytes_that_are_no_text_are_no_crash(filled: httpx.Client) -> None:
    for query in ("m=16&n=256&k=1&device=%FF%FE", "m=%C3&n=1&k=1", "%ED%A0%80=1", "&&&", "m", "=", "m=1;n=2"):
        assert filled.get(f"{URL}?{query}").status_code in (404, 422)


def test_devices_that_register_later_are_seen(settings: Settings, engine: Engine) -> None:
    with serving(settings) as client:
        fault_of(client.get(URL, params=ONE), 404)
        fill(engine, [problem(**ONE)])
        time.sleep(1.1)
        assert best(client)["match"] == "exact"
