/* One tuning, live: progress, what is left, the best so far of a job, and its end. */

import { age, get, left, remove } from "./lib/api.js";
import { chart } from "./lib/chart.js";
import { facts, fault, h, main, meter, refresh, show, table, tag } from "./lib/dom.js";
import * as filters from "./lib/filters.js";
import * as f from "./lib/format.js";

const id = decodeURIComponent(location.pathname.split("/").pop());
const path = `/v1/tunings/${encodeURIComponent(id)}`;
const ACTIVE = ["queued", "running"], MOST_JOBS = 2000, CURVE_SECONDS = 3;
const places = { facts: h("div"), live: h("p", { class: "sub", role: "status" }), curve: h("div"), jobs: h("div") };
/** Job -> what events have told of it since. */
const told = new Map();
let tuning = null, jobs = [], more = false, stream = null, last = 0, drawn = null, drawnAt = 0, pending = null;
show(places.facts, places.live, places.curve, places.jobs);
main.querySelector("h1").textContent = "Tuning";
main.querySelector(".heading").append(h("span", { class: "sub" }, h("code", {}, id)));

async function load() {
  const found = [];
  let cursor = null;
  do {
    tuning = await get(path, { limit: 500, jobs_cursor: cursor });
    found.push(...tuning.jobs.items);
    cursor = tuning.jobs.next_cursor;
  } while (cursor && found.length < MOST_JOBS);
  [jobs, more] = [found, cursor !== null];
  draw();
  await curve(true);
  fault(null);
}

/** Redraws soon; many events at once are one redraw. */
function soon() {
  pending ??= setTimeout(() => { pending = null; draw(); curve(false).catch(fault); }, 250);
}

function draw() {
  const done = tuning.succeeded + tuning.failed;
  const wins = jobs.filter((job) => job.verdict?.judgement === "WIN").length;
  refresh(places.facts, facts([
    ["Status", tag(tuning.status)],
    ["Problems", `${f.count(done)} of ${f.count(tuning.total)}`, meter(done / tuning.total, "Share that has ended", 70)],
    ["Left", ACTIVE.includes(tuning.status) ? f.duration(left(tuning)) : "–", "by those that ended"],
    ["Age", f.duration(tuning.ended_at ? (Date.parse(tuning.ended_at) - Date.parse(tuning.created_at)) / 1000 : age(tuning.created_at))],
    ["WIN", f.count(wins), `of ${f.count(jobs.filter((job) => job.verdict).length)} verdicts${more ? " listed" : ""}`],
    ["Without verdict", f.count(tuning.failed)],
    ["Device class", tuning.device_class],
  ]));
  const cancel = ACTIVE.includes(tuning.status) ? h("button", { type: "button", class: "danger", onclick: ask }, "Cancel tuning") : null;
  const shown = selected();
  refresh(places.jobs, table({
    caption: "Problems", heading: `Problems${more ? `: the first ${f.count(jobs.length)} of ${f.count(tuning.total)}` : ""}`, rows: jobs, file: id, tall: true, marked: (r) => r.id === shown?.id, tools: [cancel].filter(Boolean),
    columns: [
      { name: "#", kind: "n", cell: (r) => String(r.position + 1), value: (r) => r.position + 1 },
      { name: "Problem", kind: "name", cell: (r) => h("button", { type: "button", class: "plain", "aria-pressed": String(r.id === shown?.id), title: "Show its best so far", onclick: () => select(r) }, f.problem(r.problem)), value: (r) => r.problem_id },
      { name: "Status", cell: (r) => tag(state(r)), value: state },
      { name: "Candidates", kind: "n", title: "Outcomes so far", cell: (r) => outcomes(r), value: (r) => sum(told.get(r.id)?.outcomes) },
      { name: "Best so far", kind: "n", cell: (r) => f.time(r.verdict?.seconds ?? told.get(r.id)?.fastest?.seconds), value: (r) => r.verdict?.seconds ?? told.get(r.id)?.fastest?.seconds },
      { name: "Verdict", cell: (r) => (r.verdict ? tag(r.verdict.judgement) : "–"), value: (r) => r.verdict?.judgement },
      { name: "Speed-up", kind: "n", cell: (r) => (r.verdict ? [f.ratio(r.verdict.speedup.mid), h("small", {}, ` ${f.between(r.verdict.speedup.low, r.verdict.speedup.high, f.digits)}`)] : "–"), value: (r) => r.verdict?.speedup.mid },
      { name: "Roofline", kind: "n", cell: (r) => f.percent(r.roofline_share), value: (r) => r.roofline_share },
      { name: "Calls", kind: "n", cell: (r) => f.count(r.count), value: (r) => r.count },
      { name: "Why", kind: "words", cell: why, value: (r) => r.error ?? r.verdict?.reason },
      { name: "", cell: (r) => (r.session_id ? h("a", { href: `/leaderboard/${encodeURIComponent(r.problem_id)}?session=${encodeURIComponent(r.session_id)}` }, "candidates") : "") },
    ],
  }));
}

const state = (job) => (job.status === "queued" && told.get(job.id)?.started ? "running" : job.status);
const sum = (counts) => (counts ? Object.values(counts).reduce((a, b) => a + b, 0) : null);
function outcomes(job) {
  const counts = told.get(job.id)?.outcomes;
  if (!counts) return "–";
  const bad = Object.entries(counts).filter(([status]) => !["ok", "pruned", "unstable"].includes(status)).reduce((a, [, n]) => a + n, 0);
  return [f.count(sum(counts)), bad ? h("small", {}, ` ${bad} failed`) : null];
}
function why(job) {
  if (job.error && job.evidence) return h("details", {}, h("summary", {}, job.error), h("pre", {}, JSON.stringify(job.evidence, null, 1)));
  return job.error ?? (job.search_ended ? `search: ${job.search_ended}` : "–");
}

/** The job whose curve is shown: that of the address, else one that runs, else the first with a session. */
function selected() {
  const { job } = filters.given();
  return jobs.find((one) => one.id === job) ?? jobs.find((one) => state(one) === "running") ?? jobs.find((one) => one.session_id) ?? null;
}
function select(job) {
  filters.write({ ...filters.given(), job: job.id });
  draw();
  curve(true).catch(fault);
}

/** The best so far over the candidates that were screened, as they were stored. */
async function curve(now) {
  const job = selected();
  if (!job?.session_id) { if (job) reread(job); return; }
  if (!now && drawn === job.id && Date.now() - drawnAt < CURVE_SECONDS * 1000) return;
  [drawn, drawnAt] = [job.id, Date.now()];
  let rows = [], cursor = null;
  do {
    const page = await get(`/v1/problems/${encodeURIComponent(job.problem_id)}/measurements`, { session: job.session_id, limit: 1000, cursor });
    rows = rows.concat(page.items);
    cursor = page.next_cursor;
  } while (cursor && rows.length < 5000);
  const screened = rows.filter((row) => row.phase === "screen");
  const best = { x: [], y: [] }, points = [];
  let least = Infinity;
  screened.forEach((row, i) => {
    const right = ["ok", "pruned", "unstable"].includes(row.status) && row.seconds !== null;
    if (right && row.status !== "pruned" && row.seconds < least) least = row.seconds;
    if (Number.isFinite(least)) { best.x.push(i + 1); best.y.push(least * 1e6); }
    if (right) points.push({ x: i + 1, y: row.seconds * 1e6, small: true, colour: "s1", line: [row.solution.id, f.time(row.seconds), `${row.status}, candidate ${i + 1}`] });
  });
  const note = `${f.problem(job.problem)}: ${f.count(screened.length)} candidates screened, ${f.count(screened.length - points.length)} failed`;
  places.curve.replaceChildren(chart({
    title: "Best so far", note, file: `best-so-far-${job.problem_id}`, height: 260, label: "Best so far; arrow keys step through the candidates",
    x: { label: "candidates screened" }, y: { label: "µs a call" }, log: { y: true }, points, curves: [{ ...best, colour: "s2", step: true }],
    legend: [["candidate", "s1"], ["fastest so far", "s2 line"]],
  }));
}

let asking = false;
/** Reads the tuning's rows of one job again: it has a session by now. */
async function reread(job) {
  if (asking || !told.get(job.id)?.outcomes) return;
  asking = true;
  const page = await get(path, { limit: 500 }).catch(() => null);
  asking = false;
  const fresh = page?.jobs.items.find((one) => one.id === job.id);
  if (fresh?.session_id) { Object.assign(job, fresh); curve(true).catch(fault); }
}

// ---- live --------------------------------------------------------------------------------------

function follow() {
  if (stream || !ACTIVE.includes(tuning.status) || document.hidden) return;
  stream = new EventSource(`${path}/events?after=${last}`);
  stream.onopen = () => say("Live.");
  stream.onerror = () => {
    if (stream.readyState === EventSource.CLOSED) { stop(); say("The stream has ended; reading again."); setTimeout(again, 3000); }
    else say("The stream broke off; connecting again.");
  };
  for (const kind of ["queued", "started", "measured", "finished", "ended"]) {
    stream.addEventListener(kind, (event) => { last = Number(event.lastEventId) || last; heard(kind, JSON.parse(event.data)); });
  }
}
function stop() { stream?.close(); stream = null; }
function say(text) { if (places.live.textContent !== text) places.live.textContent = text; }
async function again() {
  try { await load(); follow(); } catch (error) { fault(error); if (error.status === 0 || error.status >= 500) setTimeout(again, 5000); }
}

function heard(kind, content) {
  const job = jobs.find((one) => one.id === content.job_id);
  const known = told.get(content.job_id) ?? {};
  if (kind === "started") {
    told.set(content.job_id, { ...known, started: true });
    if (job && job.status === "queued") { job.status = "running"; tuning.started += 1; }
    tuning.status = "running";
  } else if (kind === "measured") told.set(content.job_id, { ...known, started: true, outcomes: content.outcomes, fastest: content.fastest });
  else if (kind === "finished") {
    told.set(content.job_id, { ...known, outcomes: content.outcomes ?? known.outcomes });
    if (job && !["succeeded", "failed", "cancelled"].includes(job.status)) {
      Object.assign(job, { status: content.status, verdict: content.verdict ?? null, error: content.error, session_id: content.session_id ?? job.session_id });
      tuning[content.status === "succeeded" ? "succeeded" : "failed"] += 1;
    }
  } else if (kind === "ended") { stop(); say(`Ended: ${content.status}.`); load().catch(fault); return; }
  soon();
}

async function ask() {
  const rest = tuning.total - tuning.succeeded - tuning.failed;
  const dialog = h("dialog", { "aria-label": "Cancel tuning" }, h("p", {}, `Cancel this tuning? ${f.count(rest)} of its ${f.count(tuning.total)} problems have not ended. Jobs that another tuning shares go on.`),
    h("div", { class: "tools" }, h("button", { type: "button", onclick: () => dialog.close() }, "Keep it"), h("button", { type: "button", class: "danger", onclick: () => dialog.close("yes") }, "Cancel tuning")));
  dialog.addEventListener("close", async () => {
    dialog.remove();
    if (dialog.returnValue !== "yes") return;
    try { await remove(path); await load(); } catch (error) { fault(error); }
  });
  document.body.append(dialog);
  dialog.showModal();
}

// A page that is not seen closes its stream: browsers open few connections to one host.
document.addEventListener("visibilitychange", () => { if (document.hidden) { stop(); } else if (tuning) again(); });
filters.onback(() => { draw(); curve(true).catch(fault); });
setInterval(() => { if (tuning && ACTIVE.includes(tuning.status) && !document.hidden) draw(); }, 5000);
again();
