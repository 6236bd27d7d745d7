/* What lives, what waits, what is tuned now, and what tuning has gained. */

import { age, get, left, metrics, repeat } from "./lib/api.js";
import { facts, fault, h, meter, refresh, show, split, table, tag } from "./lib/dom.js";
import * as f from "./lib/format.js";

const SECONDS = 10;
/** Groups read at a time, and how long they are kept: gains change seldom. */
const GAIN_SECONDS = 60;
let gains = { at: -Infinity, rows: null };
const places = { facts: h("div"), devices: h("div"), tunings: h("div"), gain: h("div") };
show(...Object.values(places));

/** Device class -> value, of a metric. */
function byClass(found, name) {
  const sums = {};
  for (const { labels, value } of found[name] ?? []) sums[labels.device_class] = (sums[labels.device_class] ?? 0) + value;
  return sums;
}

/** Seconds that a class's queue still takes, from what its jobs took so far; null where none has ended. */
function waiting(queued, jobs, seconds, workers) {
  if (!queued) return 0;
  return jobs && seconds && workers ? (queued * seconds) / jobs / workers : null;
}

async function gain(classes) {
  if (Date.now() / 1000 - gains.at < GAIN_SECONDS) return gains.rows;
  const rows = await Promise.all(classes.filter((one) => one.revision > 0).map(async (one) => {
    const board = await get("/v1/leaderboard", { device: one.id, limit: 1, by: "list" });
    return { device: one.id, board };
  }));
  gains = { at: Date.now() / 1000, rows };
  return rows;
}

async function round() {
  const [devices, found, running, latest] = await Promise.all([
    get("/v1/devices"), metrics(), get("/v1/tunings", { status: "running", limit: 50 }), get("/v1/tunings", { limit: 20 }),
  ]);
  const before = gains.rows;
  draw(devices, found, running, latest, before);
  fault(null);
  const boards = await gain(devices.classes);
  if (boards !== before) draw(devices, found, running, latest, boards);
}

/** `boards`: null while they are made, which takes longer than all the rest. */
function draw(devices, found, running, latest, boards) {
  const queued = latest.items.filter((one) => one.status === "queued");
  const queues = byClass(found, "gemmtune_queue_jobs"), ages = byClass(found, "gemmtune_queue_age_seconds");
  const jobs = byClass(found, "gemmtune_jobs_ended_total"), seconds = byClass(found, "gemmtune_job_seconds_total");
  const rows = devices.classes.map((one) => {
    const live = devices.workers.filter((w) => w.device_class === one.id && ["idle", "measuring"].includes(w.status));
    return {
      ...one, live, queued: queues[one.id] ?? 0, age: ages[one.id] ?? null,
      eta: waiting(queues[one.id], jobs[one.id], seconds[one.id], live.length),
      board: boards?.find((b) => b.device === one.id)?.board ?? null, made: boards !== null,
    };
  });
  drawFacts(rows, running.items, queued);
  drawDevices(rows);
  drawTunings([...running.items, ...queued], latest.items.slice(0, 8));
  if (boards) drawGain(boards);
  else places.gain.replaceChildren(h("p", { class: "dim", role: "status" }, "Loading…"));
}

function drawFacts(rows, running, queued) {
  const live = rows.reduce((sum, row) => sum + row.live.length, 0);
  const busy = rows.reduce((sum, row) => sum + row.live.filter((w) => w.status === "measuring").length, 0);
  const waits = rows.reduce((sum, row) => sum + row.queued, 0);
  const etas = rows.filter((row) => row.queued).map((row) => row.eta);
  const eta = !etas.length ? "–" : etas.includes(null) ? "unknown" : f.duration(Math.max(...etas));
  const tuned = rows.reduce((sum, row) => sum + (row.board?.problems.all ?? 0), 0), made = rows.every((row) => row.made);
  refresh(places.facts, facts([
    ["Workers that live", f.count(live), `${busy} measuring`],
    ["Device classes", f.count(rows.length), `${rows.filter((row) => row.live.length).length} with a worker`],
    ["Queue", f.count(waits), waits === 1 ? "job" : "jobs"],
    ["Queue empty in", eta],
    ["Tunings now", f.count(running.length), `${queued.length} of the latest wait`],
    ["Problems tuned", made ? f.count(tuned) : "…"],
  ]));
}

function drawDevices(rows) {
  refresh(places.devices, table({
    caption: "Devices", rows, file: "devices", empty: "No device class is known: start `gemmtune serve` or `gemmtune worker` where the devices are.",
    columns: [
      { name: "Device class", kind: "name", cell: (r) => h("a", { href: `/leaderboard?device=${encodeURIComponent(r.id)}` }, r.id), value: (r) => r.id },
      { name: "Workers", cell: (r) => (r.live.length ? r.live.map((w) => [tag(w.status), " "]).flat() : h("span", { class: "dim" }, "none lives")), value: (r) => r.live.length },
      { name: "Queue", kind: "n", cell: (r) => f.count(r.queued), value: (r) => r.queued },
      { name: "Oldest waits", kind: "n", cell: (r) => (r.queued ? f.duration(r.age) : "–"), value: (r) => r.age },
      { name: "Empty in", kind: "n", cell: (r) => (!r.queued ? "–" : r.eta === null ? h("span", { class: "dim" }, r.live.length ? "unknown" : "no worker") : f.duration(r.eta)), value: (r) => r.eta },
      { name: "Tuned", kind: "n", cell: (r) => (r.made ? f.count(r.board?.problems.all ?? 0) : "…"), value: (r) => r.board?.problems.all ?? 0 },
      { name: "WIN · TIE · LOSS", cell: (r) => (r.board?.problems.all ? split(r.board.problems) : "–") },
      { name: "Geometric mean", kind: "n", title: "Of speed-ups over the default; 1 where the default stays", cell: (r) => f.ratio(r.board?.geometric_mean), value: (r) => r.board?.geometric_mean },
      { name: "Of all calls", kind: "n", title: "Speed-up of all counted calls together", cell: (r) => f.ratio(r.board?.seconds.speedup), value: (r) => r.board?.seconds.speedup },
      { name: "Of roofline", kind: "n", cell: (r) => f.percent(r.board?.roofline.mean), value: (r) => r.board?.roofline.mean },
    ],
  }));
}

function drawTunings(active, latest) {
  const shown = active.length ? active : latest;
  refresh(places.tunings, table({
    caption: active.length ? "Tunings now" : "Latest tunings", rows: shown, file: "tunings", empty: "Nothing was tuned yet. POST /v1/tunings, or `gemmtune tune --server`, starts one.",
    tools: [h("a", { class: "button", href: "/tunings" }, "All tunings")],
    columns: [
      { name: "Tuning", kind: "name", cell: (r) => h("a", { href: `/tunings/${encodeURIComponent(r.id)}` }, r.id), value: (r) => r.id },
      { name: "Status", cell: (r) => tag(r.status), value: (r) => r.status },
      { name: "Device class", kind: "name", cell: (r) => r.device_class, value: (r) => r.device_class },
      { name: "Problems", kind: "n", cell: (r) => [`${f.count(r.succeeded + r.failed)} of ${f.count(r.total)}`, meter((r.succeeded + r.failed) / r.total, "Share that has ended")], value: (r) => r.total },
      { name: "Without verdict", kind: "n", cell: (r) => (r.failed ? h("span", { class: "bad" }, f.count(r.failed)) : "0"), value: (r) => r.failed },
      { name: "Age", kind: "n", cell: (r) => f.duration(age(r.created_at)), value: (r) => Math.round(age(r.created_at)) },
      { name: "Left", kind: "n", title: "By the problems that have ended so far", cell: (r) => f.duration(left(r)), value: left },
    ],
  }));
}

function drawGain(boards) {
  const used = boards.filter((one) => one.board.problems.all);
  const names = [...new Set(used.flatMap((one) => one.board.groups.map((group) => group.name)))];
  const whole = { name: null, cells: used.map((one) => one.board) };
  const rows = [whole, ...names.map((name) => ({ name, cells: used.map((one) => one.board.groups.find((g) => g.name === name) ?? null) }))];
  const link = (r, i) => `/leaderboard?device=${encodeURIComponent(used[i].device)}${r.name ? `&list=${encodeURIComponent(r.name)}` : ""}`;
  refresh(places.gain, table({
    caption: "Gain by list and device class", file: "gain", rows: used.length ? rows : [], empty: "No verdict yet.",
    heading: "Gain by model or list, and device class: geometric mean of speed-ups (problems)",
    columns: [
      { name: "List", cell: (r) => r.name ?? h("b", {}, "All problems"), value: (r) => r.name ?? "all" },
      ...used.map((one, i) => ({
        name: f.device(one.device), kind: "n", value: (r) => r.cells[i]?.geometric_mean,
        cell: (r) => (r.cells[i] ? [h("a", { href: link(r, i) }, f.ratio(r.cells[i].geometric_mean)), h("small", {}, ` (${f.count(r.cells[i].problems.all)})`)] : "–"),
      })),
    ],
  }));
}

repeat(SECONDS, round, fault);
