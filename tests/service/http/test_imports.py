"""Files taken in: problems and names, claims, a bare node's sessions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, func, select

from backends.environment import DeviceClass
from backends.problem import from_linear
from db import models
from db.engine import reading, writing
from db.values import table
from service import exports, imports, records
from service.formats import READERS
from service.settings import Settings
from tests.service.formats.made import row, written
from tests.service.http.filled import CLASS, ENVIRONMENT, GPU, POLICY, fill, measured, problem, register
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of, fits
from tests.service.http.uploads import LLAMA, RESULTS, UNTUNED, journal, stream
from tuners.policy import MeasurementPolicy

CSV = {"Content-Type": "text/csv"}
NEW_CLASS = "hip:gfx942:MI300X:304"


def upload(client: httpx.Client, content: bytes, format_name: str = "auto", **params: Any) -> Any:
    response = client.post(f"/v1/imports/{format_name}", content=content, headers=CSV, params=params)
    return fits(records.ImportAnswer, response)


def counts(engine: Engine) -> dict[str, int]:
    """Rows of every table that an import writes."""
    kinds = (models.Problem, models.ProblemKey, models.Provenance, models.Claim, models.Solution,
             models.Session, models.Measurement, models.Verdict, models.Best, models.DeviceClass)  # fmt: skip
    with reading(engine) as connection:
        return {
            kind.__name__: connection.execute(select(func.count()).select_from(table(kind))).scalar_one()
            for kind in kinds
        }


def everything(engine: Engine) -> dict[str, list[Any]]:
    """Every row that an import may write."""
    with reading(engine) as connection:
        return {
            kind.__name__: [tuple(row) for row in connection.execute(select(table(kind)))]
            for kind in (models.ProblemKey, models.Provenance, models.Claim, models.Session,
                         models.Measurement, models.Best, models.DeviceClass)
        }  # fmt: skip


# ---- quantised weights that a program packs --------------------------------------------------------

WEIGHTS: dict[str, Any] = {"m": 4, "n": 64, "k": 256, "dtype": "bf16", "dtype_b": "uint4", "trans_b": True,
           "scaling": {"b": "group_64", "dtype": "bf16", "zero_b": "eight"}}  # fmt: skip
PLAIN: dict[str, Any] = {"m": 4, "n": 64, "k": 256, "dtype": "bf16"}


def lines(*problems: Any) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in problems).encode()


def test_weights_of_a_file_are_packed_where_asked(client: httpx.Client, engine: Engine) -> None:
    content = lines({**WEIGHTS, "count": 8}, PLAIN, {**WEIGHTS, "prepacked": True})
    packed = upload(client, content, prepacked=True)
    assert [one.get("prepacked", False) for one in packed["problems"]] == [True, False]
    assert [one["count"] for one in packed["problems"]] == [9, 1]
    stored = upload(client, content)
    assert [one.get("prepacked", False) for one in stored["problems"]] == [False, False, True]
    assert stored["provenance"]["sha256"] != packed["provenance"]["sha256"]
    before = everything(engine)
    assert not upload(client, content, prepacked=True)["provenance"]["new"]
    assert everything(engine) == before


def test_a_file_without_weights_to_pack_is_refused_whole(client: httpx.Client, engine: Engine) -> None:
    before = counts(engine)
    refused = client.post("/v1/imports/auto", content=lines(PLAIN), headers=CSV, params={"prepacked": True})
    fault = fault_of(refused, 422)
    assert fault["errors"][0]["parameter"] == "prepacked"
    assert "none of the 1 problem of upload has such weights: leave it out" in fault["detail"]
    assert counts(engine) == before
    word = client.post("/v1/imports/auto", content=lines(PLAIN), headers=CSV, params={"prepacked": "x"})
    assert fault_of(word, 422)["errors"][0]["parameter"] == "prepacked"


def test_claims_and_sessions_stay_with_what_was_measured(client: httpx.Client, engine: Engine) -> None:
    stored, plain = problem(**WEIGHTS), problem(**PLAIN)
    said = journal(plain).decode()  # a session of the plain product, said to be of these weights
    one, other = (json.dumps(each.to_dict(), separators=(",", ":")) for each in (plain, stored))
    said = said.replace(one, other).replace(plain.id, stored.id)
    found = upload(client, said.encode(), prepacked=True)
    assert (found["sessions"]["stored"], found["problems"][0]["prepacked"]) == (1, True)
    with reading(engine) as connection:
        assert connection.execute(select(table(models.Session).c.problem_id)).scalar_one() == stored.id
    rows = client.get("/v1/exports/jsonl", params={"device": CLASS}).content
    claimed = upload(client, rows, prepacked=True)
    assert claimed["problems"][0]["prepacked"]
    assert claimed["claims"]["stored"] == 1, claimed["claims"]
    with reading(engine) as connection:
        assert connection.execute(select(table(models.Claim).c.problem_id)).scalar_one() == stored.id


# ---- problems and names ----------------------------------------------------------------------------


@pytest.mark.parametrize("content", [UNTUNED, LLAMA], ids=["gpt2", "llama3"])
@pytest.mark.parametrize("format_name", ["auto", "tunableop-untuned"])
def test_an_untuned_file_becomes_problems(
    client: httpx.Client, engine: Engine, content: bytes, format_name: str
) -> None:
    lines = len(content.splitlines())
    found = upload(client, content, format_name)
    assert found["format"] == "tunableop-untuned"
    assert sum(one["count"] for one in found["problems"]) == lines
    assert (found["rejected"], found["rejected_more"], found["tuning"]) == ([], 0, None)
    assert found["provenance"]["kind"] == "imported"
    assert found["provenance"]["new"]
    listed = client.get("/v1/problems?limit=1000").json()["items"]
    assert {one["id"] for one in listed} == {one["id"] for one in found["problems"]}
    for one in found["problems"]:
        wire = {name: value for name, value in one.items() if name not in ("id", "count")}
        assert problem(**wire).id == one["id"]
    assert counts(engine)["ProblemKey"] == lines


def test_the_same_file_again_changes_nothing(client: httpx.Client, engine: Engine) -> None:
    first = upload(client, UNTUNED)
    before = everything(engine)
    again = upload(client, UNTUNED)
    assert again.pop("provenance") == {**first.pop("provenance"), "new": False}
    assert again == first
    assert everything(engine) == before


def test_of_two_files_the_later_counts(client: httpx.Client, engine: Engine) -> None:
    line = UNTUNED.splitlines()[0] + b"\n"
    one, three = line, line * 3

    def calls() -> int:
        with reading(engine) as connection:
            return int(connection.execute(select(table(models.ProblemKey).c.count)).scalar_one())

    upload(client, one)
    assert calls() == 1
    upload(client, three)
    assert calls() == 3
    upload(client, one)
    assert calls() == 3


def test_an_export_that_was_cut_short_is_told(client: httpx.Client) -> None:
    whole = written("jsonl", [row(from_linear(m, 64, 64, "bf16")) for m in (1, 2)])[0].encode()
    assert upload(client, whole)["rejected"] == []
    found = upload(client, b"".join(whole.splitlines(keepends=True)[:2]), "jsonl")
    assert len(found["problems"]) == 1
    (fault,) = found["rejected"]
    assert fault["line"] == 2
    assert fault["reason"].startswith("the export that begins on line 1 was cut short: 1 row came")


def test_bad_lines_are_told(client: httpx.Client) -> None:
    found = upload(client, UNTUNED.splitlines()[0] + b"\nnonsense\n\n\xff\n", "tunableop-untuned")
    assert len(found["problems"]) == 1
    assert [one["line"] for one in found["rejected"]] == [2, 4]
    assert all(one["reason"] for one in found["rejected"])


def test_a_file_may_be_tuned_at_once(client: httpx.Client) -> None:
    found = upload(client, UNTUNED, tune="true", source="gpt2")
    assert found["provenance"]["source"] == "gpt2"
    tuning = client.get(found["tuning"]["links"]["self"]).json()
    assert tuning["total"] == found["tuning"]["total"] == len(found["problems"])
    assert {job["count"] for job in tuning["jobs"]["items"]} == {1}


def test_a_file_is_tuned_in_the_devices_mode(client: httpx.Client, engine: Engine) -> None:
    register(engine, GPU)
    for device, policy in (("cpu", MeasurementPolicy("eager")), ("cuda", MeasurementPolicy("graph"))):
        found = upload(client, UNTUNED, tune="true", device=device)
        made = client.get(found["tuning"]["links"]["self"]).json()
        assert made["policy_id"] == policy.id


def test_what_cannot_be_tuned_is_stored_and_told(settings: Settings, engine: Engine) -> None:
    fill(engine, [])
    with serving(settings.model_copy(update={"max_problems": 3})) as client:
        found = upload(client, UNTUNED, tune="true")
        assert (found["tuning"]["id"], found["tuning"]["links"]) == (None, None)
        assert "more than 3 problems" in found["tuning"]["reason"]
        assert len(client.get("/v1/problems").json()["items"]) == len(found["problems"])


# ---- a model's description -------------------------------------------------------------------------

MODEL = (Path(__file__).parents[2] / "data" / "models" / "llama-3-8b.json").read_bytes()


def test_a_model_is_asked_for_as_it_is_run(client: httpx.Client) -> None:
    found = upload(client, MODEL, tensor_parallel=8, tokens=[1, 16])
    assert found["format"] == "model-config"
    assert {(p["m"], p["n"], p["k"]) for p in found["problems"]} == {
        (m, n, k)
        for m in (1, 16)
        for n, k in ((768, 4096), (4096, 512), (3584, 4096), (4096, 1792), (16032, 4096))
    }
    assert {p["dtype"] for p in found["problems"]} == {"bf16"}
    assert {p["count"] for p in found["problems"]} == {1, 32}
    split = upload(client, MODEL, tokens=[1], layers="split")
    assert {(p["n"], p["k"]): p["count"] for p in split["problems"]} == {
        (4096, 4096): 64, (1024, 4096): 64, (14336, 4096): 64, (4096, 14336): 32, (128256, 4096): 1,
    }  # fmt: skip
    wider = upload(client, MODEL, tokens=[1], dtype="fp16")
    assert {p["dtype"] for p in wider["problems"]} == {"fp16"}
    assert {(p["n"], p["k"]) for p in wider["problems"]} >= {(6144, 4096), (28672, 4096)}


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"tokens": [0]}, "tokens"),
        ({"tokens": [2**31]}, "tokens"),
        ({"tensor_parallel": 0}, "tensor_parallel"),
        ({"tensor_parallel": 3}, "32"),
        ({"dtype": "fp7"}, "fp7"),
        ({"layers": "mixed"}, "layers"),
        ({"top_k": 0}, "top_k"),
        ({"expert_parallel": 2}, "this model has no routed experts"),
    ],
)
def test_a_way_that_the_model_cannot_be_run_is_told(
    client: httpx.Client, params: dict[str, Any], words: str
) -> None:
    response = client.post("/v1/imports/model-config", content=MODEL, headers=CSV, params=params)
    assert response.status_code == 422
    assert words in response.text


def test_layers_of_experts_of_a_log(client: httpx.Client) -> None:
    name = "E=16,N=768,device_name=NVIDIA_H200.json"
    line = f"WARNING Using default MoE config. ... Config file not found at ['/x/{name}']\n".encode()
    found = upload(client, line, tokens=[1, 4], hidden_size=2048, top_k=8, expert_parallel=2)
    assert found["format"] == "vllm-log"
    assert [(p["groups"], p["m"], p["n"], p["k"]) for p in found["problems"]] == [
        (16, 4, 1536, 2048), (16, 4, 2048, 768), (16, 16, 1536, 2048), (16, 16, 2048, 768),
    ]  # fmt: skip
    unknown = upload(client, line, tokens=[1])
    assert "give hidden_size (--hidden-size) and top_k (--top-k)" in unknown["rejected"][0]["reason"]


# ---- claims ----------------------------------------------------------------------------------------


def test_results_need_a_device(client: httpx.Client, engine: Engine) -> None:
    found = upload(client, RESULTS)
    assert (found["format"], len(found["problems"])) == ("tunableop", 1)
    assert (found["claims"]["stored"], found["claims"]["skipped"]) == (0, 1)
    assert "name the device" in found["claims"]["reasons"][0]
    assert counts(engine)["Claim"] == 0


@pytest.mark.parametrize("device", [NEW_CLASS, "hip:gfx942:MI308X:80"])
def test_results_become_claims_of_a_device(client: httpx.Client, engine: Engine, device: str) -> None:
    found = upload(client, RESULTS, device=device)
    assert found["claims"] == {"stored": 1, "known": 0, "skipped": 0, "reasons": []}
    class_id = device
    assert found["provenance"]["device_class"] == class_id
    before = everything(engine)
    assert upload(client, RESULTS, device=device)["claims"]["known"] == 1
    assert everything(engine) == before
    assert class_id in {one["id"] for one in client.get("/v1/devices").json()["classes"]}
    asked: dict[str, str | int] = {"m": 1024, "n": 1024, "k": 1024, "dtype": "bf16", "device": device}
    assert client.get("/v1/solutions/best", params=asked).json()["match"] == "default"


CUDA_RESULTS = (
    b"Validator,PT_VERSION,2.14.0\nValidator,CUBLASLT_VERSION,130200\n"
    b"Validator,CUDA_DEVICE,9.0:NVIDIA H200\n"
    b"GemmTunableOp_BFloat16_NN,nn_1024_1024_1024_ld_1024_1024_1024,Default,0.0105563\n"
)


H100 = "cuda:sm_90:NVIDIA-H100:132"
AITER = READERS["aiter"].example.encode()
BLOCK_FP8 = (
    b"==> N=2048,K=4096,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json <==\n"
    b'{"1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 16, "num_warps": 4,'
    b' "num_stages": 3}}\n'
)


@pytest.mark.parametrize(
    ("content", "device", "reason"),
    [
        (RESULTS, "cpu", f"the file says hip, not {CLASS}: its solutions are of rocblas"),
        (
            RESULTS.replace(b"Gemm_Rocblas_-621294427", b"Default"),
            "cpu",
            f"the file says gfx942, not {CLASS}",
        ),
        (RESULTS, "hip:gfx90a:MI250X:104", "the file says gfx942, not hip:gfx90a:MI250X:104"),
        (CUDA_RESULTS, NEW_CLASS, f"the file says 9.0:NVIDIA H200, not {NEW_CLASS}"),
        (
            CUDA_RESULTS,
            "cuda:sm_90:NVIDIA-H100:132",
            "the file says 9.0:NVIDIA H200, not cuda:sm_90:NVIDIA-H100:132",
        ),
        (CUDA_RESULTS, "cuda:sm_90:NVIDIA-H200:132", None),
        (AITER, NEW_CLASS, None),
        (AITER, "hip:gfx950:MI355X:256", "the file says gfx942, not hip:gfx950:MI355X:256"),
        (AITER, "hip:gfx942:MI308X:80", "the file says 304 compute units, not hip:gfx942:MI308X:80"),
        (BLOCK_FP8, "cuda:sm_90:NVIDIA-H200:132", None),
        (
            BLOCK_FP8,
            "cuda:sm_90:NVIDIA-H100:132",
            "the file says NVIDIA_H200, not cuda:sm_90:NVIDIA-H100:132",
        ),
    ],
)
def test_a_device_that_the_file_contradicts_is_told(
    client: httpx.Client, engine: Engine, content: bytes, device: str, reason: str | None
) -> None:
    found = upload(client, content, device=device)
    skipped = 0 if reason is None else 1
    reasons = [] if reason is None else [reason]
    assert found["claims"] == {"stored": 1 - skipped, "known": 0, "skipped": skipped, "reasons": reasons}
    assert counts(engine)["Claim"] == 1 - skipped


@pytest.mark.parametrize("format_name", ["csv", "json"])
def test_an_export_of_another_device_is_no_claim(
    client: httpx.Client, engine: Engine, format_name: str
) -> None:
    with writing(engine) as connection:
        measured(connection, problem(16, 256, 512))
    text = client.get(f"/v1/exports/{format_name}").content
    found = upload(client, text, device=NEW_CLASS)
    assert (found["claims"]["stored"], found["claims"]["reasons"]) == (
        0,
        [f"the file says {CLASS}, not {NEW_CLASS}"],
    )
    assert upload(client, text, device="cpu")["claims"]["stored"] == 1


def test_our_own_csv_brings_its_device(client: httpx.Client, engine: Engine) -> None:
    with writing(engine) as connection:
        measured(connection, problem(16, 256, 512))

    def export(device: str, format_name: str = "json") -> str:
        chosen = exports.Selection(DeviceClass.parse(device), POLICY.id, imported=True)
        return "".join(exports.open_export(engine, format_name, chosen).pieces)

    text, other = export(CLASS, "csv"), "cpu:x86_64:Other-CPU:2"
    found = upload(client, text.replace(CLASS, other).encode())
    assert found["claims"] == {"stored": 1, "known": 0, "skipped": 0, "reasons": []}
    with reading(engine) as connection:
        (claim,) = connection.execute(select(table(models.Claim))).mappings().all()
    assert (claim["device_class_id"], claim["policy_id"]) == (other, POLICY.id)
    assert claim["content"]["judgement"] == "WIN"
    (row,), (was,) = (json.loads(export(device))["rows"] for device in (other, CLASS))
    names = ("solution", "seconds", "baseline_name", "baseline_seconds", "speedup", "rounds", "session",
             "decided_at")  # fmt: skip
    assert {name: row[name] for name in names} == {name: was[name] for name in names}
    found = upload(client, text.replace(",device,", ",#device,", 1).encode())
    assert (found["claims"]["stored"], found["claims"]["skipped"]) == (0, 1)


@pytest.mark.parametrize(
    "device", ["hip", "hip:gfx942", "hip:gfx942:MI300X:0", "hip:gfx942:MI300X:99999999999", "x:y:z:1", "",
               "a\0b", "hip:g\0:MI300X:304"],
)  # fmt: skip
def test_what_is_no_device_is_404_and_nothing_is_stored(
    client: httpx.Client, engine: Engine, device: str
) -> None:
    before = counts(engine)
    fault_of(client.post("/v1/imports/auto", content=RESULTS, headers=CSV, params={"device": device}), 404)
    assert counts(engine) == before


def test_our_own_export_brings_its_environment(client: httpx.Client, engine: Engine, tmp_path: Any) -> None:
    asked = problem(16, 256, 512)
    with writing(engine) as connection:
        measured(connection, asked, environment=replace(ENVIRONMENT, product="Other CPU"))
    device = "cpu:x86_64:Other-CPU:2"
    for format_name in ("json", "jsonl"):
        text = client.get(f"/v1/exports/{format_name}", params={"device": device}).content
        found = upload(client, text)
        assert found["format"] == format_name
        assert found["claims"]["stored"] == 1
        assert found["provenance"]["device_class"] is None
    with reading(engine) as connection:
        rows = connection.execute(select(table(models.Claim))).mappings().all()
    assert {row["device_class_id"] for row in rows} == {device}
    assert rows[0]["content"]["judgement"] == "WIN"


# ---- sessions --------------------------------------------------------------------------------------


def test_a_journals_sessions_are_measurements(client: httpx.Client, engine: Engine) -> None:
    asked = problem(16, 256, 512)
    found = upload(client, journal(asked), source="node-7")
    assert found["format"] == "journal"
    assert found["sessions"] == {"stored": 1, "known": 0, "skipped": 0, "reasons": []}
    assert found["provenance"]["kind"] == "node"
    best = client.get("/v1/solutions/best", params={"m": 16, "n": 256, "k": 512}).json()
    assert best["match"] == "exact"
    assert best["provenance"] == {"kind": "node", "source": "node-7"}
    assert len(client.get(f"/v1/problems/{asked.id}/measurements").json()["items"]) == 10


def test_a_journal_again_changes_nothing(client: httpx.Client, engine: Engine) -> None:
    content = journal(problem(16, 256, 512))
    upload(client, content)
    before = everything(engine)
    assert upload(client, content)["sessions"]["known"] == 1
    assert everything(engine) == before


def test_a_journal_that_has_grown_goes_on(client: httpx.Client, engine: Engine) -> None:
    asked = problem(16, 256, 512)
    grown: list[dict[str, Any]] = [
        {"outcomes": 2, "result": False}, {"outcomes": 7, "result": False}, {"outcomes": None},
    ]  # fmt: skip
    rows = []
    for state in grown:
        assert upload(client, journal(asked, **state))["sessions"]["stored"] == 1
        found = counts(engine)
        rows.append((found["Session"], found["Measurement"], found["Verdict"], found["Best"]))
    assert rows == [(1, 2, 0, 0), (1, 7, 0, 0), (1, 10, 1, 1)]
    session = client.get(f"/v1/problems/{asked.id}/measurements?view=leaderboard").json()["session"]
    assert session["status"] == "succeeded"


def test_two_runs_of_the_same_request_are_two_sessions(client: httpx.Client, engine: Engine) -> None:
    asked = problem(16, 256, 512)
    upload(client, journal(asked))
    upload(client, journal(asked, scale=2e-3))
    assert counts(engine)["Session"] == 2


def test_a_session_that_says_nothing_or_lies_is_left_out(client: httpx.Client, engine: Engine) -> None:
    asked = problem(16, 256, 512)
    found = upload(client, journal(asked, outcomes=0, result=False))
    assert (found["sessions"]["skipped"], found["sessions"]["reasons"]) == (
        1,
        ["line 1: the session has no outcome yet"],
    )
    found = upload(client, journal(asked, outcomes=1))  # a verdict on what was never measured
    assert found["sessions"]["skipped"] == 1
    honest = journal(asked)
    begin = honest.index(b'"solution":"', honest.index(b'"targets":{')) + len(b'"solution":"')
    lie = honest[:begin] + b"nobody-" + honest[begin:]
    found = upload(client, lie)  # the target's candidate was never measured
    reason = "line 1: its verdict names a solution that the session never measured"
    assert (found["sessions"]["skipped"], found["sessions"]["reasons"]) == (1, [reason])
    assert counts(engine)["Session"] == 0


def test_an_environment_that_no_database_takes_is_left_out(client: httpx.Client, engine: Engine) -> None:
    for strange in (replace(ENVIRONMENT, driver="a\0b"), replace(ENVIRONMENT, memory_bytes=2**63)):
        found = upload(client, journal(problem(16, 256, 512), environment=strange))
        assert (found["sessions"]["stored"], found["sessions"]["skipped"]) == (0, 1)
    units = b'"units":%d,' % ENVIRONMENT.units
    content = journal(problem(16, 256, 512))
    assert units in content
    found = upload(client, content.replace(units, b'"units":1000000000,'))
    assert found["sessions"]["stored"] == 0
    assert "units must be at least 1 and" in found["rejected"][0]["reason"]
    assert counts(engine)["Session"] == 0


# ---- what is no upload -----------------------------------------------------------------------------


def test_what_cannot_be_read_is_told(filled: httpx.Client) -> None:
    for content in (b"", b"hello", b"\x1f\x8b\x08\x00", b"PK\x03\x04", b"\0" * 100):
        fault_of(filled.post("/v1/imports/auto", content=content, headers=CSV), 422)
    fault = fault_of(filled.post("/v1/imports/hipblaslt2", content=b"x", headers=CSV), 404)
    assert fault["formats"] == ["auto", *READERS]


@pytest.mark.parametrize(
    "kind", ["multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "image/png", "", "\xff"]
)
def test_other_types_are_415(filled: httpx.Client, kind: str) -> None:
    response = filled.post(
        "/v1/imports/auto", content=UNTUNED, headers={b"Content-Type": kind.encode("latin-1")}
    )
    fault = fault_of(response, 415)
    assert "text/csv" in fault["detail"]
    assert "text/csv" in response.headers["accept-post"]


@pytest.mark.parametrize("kind", ["text/csv; charset=utf-8", "APPLICATION/JSON", "application/octet-stream"])
def test_the_types_of_files_are_taken(client: httpx.Client, kind: str) -> None:
    headers = {"Content-Type": kind}
    assert client.post("/v1/imports/auto", content=UNTUNED, headers=headers).status_code == 200


def test_packed_bodies_are_415(filled: httpx.Client) -> None:
    response = filled.post("/v1/imports/auto", content=UNTUNED, headers={**CSV, "Content-Encoding": "gzip"})
    assert "unpacked" in fault_of(response, 415)["detail"]


def test_an_upload_has_a_limit(settings: Settings) -> None:
    with serving(settings.model_copy(update={"max_upload_bytes": 4096})) as client:
        fault = fault_of(client.post("/v1/imports/auto", content=b"x" * 5000, headers=CSV), 413)
        assert fault["limit"] == 4096

        def endless() -> Iterator[bytes]:
            for _ in range(1000):
                yield b"x" * 1000

        fault_of(client.post("/v1/imports/auto", content=endless(), headers=CSV), 413)
        assert client.get("/healthz").status_code == 200


def test_a_large_upload_is_no_matter_of_memory(client: httpx.Client) -> None:
    lines = UNTUNED.splitlines(keepends=True)[:20]
    found = upload(client, b"".join(lines) * 5000)
    assert sum(one["count"] for one in found["problems"]) == 100_000


# ---- as the command line does it -------------------------------------------------------------------


def test_a_file_is_imported_without_a_server(settings: Settings, engine: Engine) -> None:
    done = imports.import_file(engine, stream(RESULTS), "results.csv", None, NEW_CLASS)
    assert json.loads(json.dumps(done.to_dict()))["claims"]["stored"] == 1
    assert done.provenance["source"] == "results.csv"
    assert imports.distinct(done.read)[0][1] == 1
    assert imports.import_class(engine, "hip") == DeviceClass.parse(NEW_CLASS)
    assert imports.import_class(engine, str(GPU.device_class)) == GPU.device_class
