/* One problem: every candidate of a session with its interval, its outcome and why it did not win. */

import { get } from "./lib/api.js";
import { facts, fault, h, main, show, svg, table, tag } from "./lib/dom.js";
import * as filters from "./lib/filters.js";
import * as f from "./lib/format.js";

const id = decodeURIComponent(location.pathname.split("/").pop());
const WIDTH = 170, HEIGHT = 22;

function set(name, value) {
  filters.write({ ...filters.given(), [name]: value });
  load();
}

async function load() {
  try {
    const given = filters.given();
    const [problem, board] = await Promise.all([
      get(`/v1/problems/${encodeURIComponent(id)}`),
      get(`/v1/problems/${encodeURIComponent(id)}/measurements`, { view: "leaderboard", device: given.session ? null : given.device, session: given.session }),
    ]);
    draw(problem, board, given);
    fault(null);
  } catch (error) {
    fault(error);
  }
}

function draw(problem, board, given) {
  document.title = `${f.problem(problem.problem)} · gemmtune`;
  main.querySelector("h1").textContent = f.problem(problem.problem);
  main.querySelector(".heading .sub")?.remove();
  const device = board.session?.device_class ?? given.device ?? "";
  main.querySelector(".heading").append(h("span", { class: "sub" }, h("code", {}, problem.id)));
  const verdict = board.verdict, own = problem.verdicts.find((one) => one.session_id === board.session?.id);
  show(
    choices(problem, board), verdict ? summary(verdict, own, board) : h("p", { class: "dim" }, reason(board)),
    candidates(board, given), board.session ? rest(problem, board) : null,
  );
}

function reason(board) {
  if (!board.session) return "The problem was not measured on this device class.";
  return `The session has no verdict: it ${board.session.status}${board.session.error ? ` (${board.session.error})` : ""}.`;
}

function choices(problem, board) {
  const known = problem.verdicts.map((one) => [one.session_id, `${f.when(one.decided_at)} · ${one.device_class} · ${one.policy_id} · ${one.verdict.judgement}`]);
  const device = board.session?.device_class;
  return h("div", { class: "filters" },
    filters.choice("session", "Session", [["", "the latest with a verdict"], ...known], filters.given().session, set),
    device ? h("a", { class: "button", href: `/roofline?device=${encodeURIComponent(device)}&problem=${encodeURIComponent(problem.id)}&session=${encodeURIComponent(board.session.id)}` }, "On the roofline") : null,
    device ? h("a", { class: "button", href: `/leaderboard?device=${encodeURIComponent(device)}` }, "Leaderboard") : null);
}

function summary(verdict, own, board) {
  const place = board.items.find((one) => one.solution.id === verdict.baseline)?.rank;
  return h("div", {}, facts([
    ["Verdict", tag(verdict.judgement)],
    ["Speed-up", f.ratio(verdict.speedup.mid), f.between(verdict.speedup.low, verdict.speedup.high)],
    ["Winner's time", f.time(verdict.seconds)],
    ["Default's time", f.time(verdict.baseline_seconds), verdict.baseline_name],
    ["Default's place", place ? `${place}` : "–", `of ${board.items.length}`],
    ["Of roofline", f.percent(own?.roofline_share), own?.binds ? `bound by ${own.binds}` : null],
    ...(verdict.packing ? [["Packed weights", f.bytes(verdict.packing.bytes), `${verdict.packing.layout}, packed once in ${f.time(verdict.packing.us / 1e6)}`]] : []),
    ["Ties", f.count(verdict.tied ?? verdict.tie_set.length), verdict.rounds ? `${verdict.rounds} rounds` : null],
  ]), h("p", { class: "sub" }, verdict.reason));
}

/** Samples as strokes, the median's interval as a band, on one axis for all candidates. */
function spread(row, low, high, reference) {
  const values = row.samples.filter(Number.isFinite);
  if (!values.length || !(high > low)) return "–";
  const at = (value) => (Math.log(Math.min(Math.max(value, low), high) / low) / Math.log(high / low)) * (WIDTH - 8) + 4;
  const ends = row.interval && row.interval.low !== null && row.interval.high !== null ? [at(row.interval.low), at(row.interval.high)] : null;
  const median = at(row.seconds), sorted = [...values].sort((a, b) => a - b);
  const label = `${values.length} samples, ${f.time(sorted[0])} to ${f.time(sorted.at(-1))}`;
  return svg("svg", { class: "spread", width: WIDTH, height: HEIGHT, role: "img", "aria-label": label },
    svg("title", {}, label), svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 3, y2: HEIGHT - 3 }),
    reference ? svg("line", { class: "reference", x1: at(reference), x2: at(reference), y1: 0, y2: HEIGHT }) : null,
    ends ? svg("rect", { class: "interval", x: ends[0], width: Math.max(1.5, ends[1] - ends[0]), y: 3, height: HEIGHT - 8 }) : null,
    values.map((value) => svg("line", { class: "sample", x1: at(value), x2: at(value), y1: 6, y2: HEIGHT - 6 })),
    svg("line", { class: "median", x1: median, x2: median, y1: 2, y2: HEIGHT - 3 }));
}

function candidates(board, given) {
  const timed = board.items.filter((one) => one.seconds !== null && one.standing !== "failed");
  const verdict = board.verdict, base = verdict?.baseline_seconds ?? null;
  const shown = board.items.filter((one) => (!given.phase || one.phase === given.phase) && (!given.standing || one.standing === given.standing) && (!given.family || one.solution.family === given.family));
  const axis = timed.flatMap((one) => one.samples).filter((value) => Number.isFinite(value) && value > 0).sort((a, b) => a - b);
  const low = (axis[0] ?? 0) * 0.99, high = Math.min((axis.at(-1) ?? 0) * 1.01, low * 12);
  const names = (pick) => [...new Set(board.items.map(pick))].sort().map((name) => [name, name]);
  const resource = (row) => {
    const r = row.resources, p = row.packing;
    const memory = [row.solution.workspace_bytes ? `${f.bytes(row.solution.workspace_bytes)} workspace` : null, p ? `${f.bytes(p.bytes)} packed once in ${f.time(p.us / 1e6)}` : null];
    const own = r ? [`${r.registers ?? "?"} reg`, `${f.bytes(r.shared_bytes ?? 0)} shared`, r.local_bytes ? `${f.bytes(r.local_bytes)} spilled` : null,
      r.blocks_per_unit ? `${r.blocks_per_unit} blocks/SM` : null] : [];
    return [...own, ...memory].filter(Boolean).join(", ") || "–";
  };
  return h("div", {},
    h("div", { class: "filters" },
      filters.choice("phase", "Timed in", [["", "any phase"], ["final", "the final"], ["screen", "the screening"]], given.phase, set),
      filters.choice("standing", "Standing", [["", "any"], ...names((one) => one.standing)], given.standing, set),
      filters.choice("family", "Family", [["", "any"], ...names((one) => one.solution.family)], given.family, set)),
    table({
      caption: "Candidates", heading: `Candidates: ${shown.length} of ${board.items.length}, the fastest first`, rows: shown, file: `candidates-${id}`, tall: true,
      empty: "No candidate with these filters.", marked: (r) => r.standing === "winner" || r.standing === "default", sorted: { key: "#", descending: false },
      columns: [
        { name: "#", kind: "n", cell: (r) => String(r.rank), value: (r) => r.rank },
        { name: "Standing", cell: (r) => tag(r.standing), value: (r) => r.standing },
        { name: "Candidate", kind: "id", cell: (r) => r.solution.id, value: (r) => r.solution.id, hint: (r) => JSON.stringify(r.solution.parameters) },
        { name: "Time", kind: "n", cell: (r) => f.time(r.seconds), value: (r) => r.seconds },
        { name: "Interval", kind: "n", cell: (r) => (r.interval ? f.between(r.interval.low, r.interval.high, f.time) || "open" : "–"), value: (r) => (r.interval?.high == null || r.interval?.low == null ? null : r.interval.high - r.interval.low), csv: "Interval's width" },
        { name: "Over default", kind: "n", title: "The default's time over this one's; exact for finals alone", cell: (r) => f.ratio(base && r.seconds ? base / r.seconds : null), value: (r) => (base && r.seconds ? base / r.seconds : null) },
        { name: "Samples", cell: (r) => spread(r, low, high, base), hint: (r) => `${r.samples.length} samples` },
        { name: "Phase", cell: (r) => r.phase, value: (r) => r.phase },
        { name: "Why", kind: "words", cell: (r) => r.reason, value: (r) => r.reason },
        { name: "Outcome", cell: (r) => (r.status === "ok" ? "ok" : tag(r.status.replaceAll("_", " "))), value: (r) => r.status },
        { name: "Resources", kind: "words", cell: resource, value: resource },
        { name: "Deterministic", cell: (r) => (r.solution.deterministic === null ? "unknown" : r.solution.deterministic ? "yes" : "no"), value: (r) => r.solution.deterministic },
      ],
    }),
    h("p", { class: "sub" }, "Strokes are samples, on a logarithmic axis that all candidates share; the band is the interval of the median; the dashed line is the default's time. Times of the final are of interleaved rounds; those of the screening were taken before it."));
}

function rest(problem, board) {
  const { session } = board;
  const tried = board.verdict?.baselines ?? [];
  return h("div", {},
    tried.length ? table({ caption: "Defaults that were tried", rows: tried, file: `defaults-${id}`, columns: [
      { name: "Default", cell: (r) => r.name, value: (r) => r.name }, { name: "Time", kind: "n", cell: (r) => f.time(r.seconds), value: (r) => r.seconds },
      { name: "Fate", cell: (r) => tag(r.fate), value: (r) => r.fate }, { name: "Reason", kind: "words", cell: (r) => r.reason || "–", value: (r) => r.reason }] }) : null,
    h("p", { class: "sub" }, `Session ${session.id}, ${f.when(session.created_at)}, environment ${session.environment_id}. Search ended: ${session.search_ended ?? "not known"}.`),
    session.notes.length ? h("details", {}, h("summary", {}, `${session.notes.length} notes`), h("ul", {}, session.notes.map((note) => h("li", {}, note)))) : null,
    problem.keys.length ? h("details", {}, h("summary", {}, "Names in other tools"), h("ul", {}, problem.keys.map((key) => h("li", {}, h("code", {}, `${key.format}: ${key.key}`), ` · ${f.count(key.count)} calls`)))) : null);
}

filters.onback(load);
load();
