/* Machines and their devices: who lives, who was silent, what failed last; and jobs by state. */

import { age, get, metrics, repeat } from "./lib/api.js";
import { facts, fault, h, main, refresh, show, table, tag } from "./lib/dom.js";
import * as filters from "./lib/filters.js";
import * as f from "./lib/format.js";

const LATE_SECONDS = 30;
const STATES = ["queued", "running", "succeeded", "failed", "cancelled"];
/** Whether this service lists workers and jobs by themselves. */
const listed = main.dataset.fleet === "yes";
const places = {
  facts: h("div"), workers: h("div"), form: h("form", { class: "filters", "aria-label": "Jobs", onsubmit: (event) => event.preventDefault() }), jobs: h("div"),
};
show(...Object.values(places));
if (listed) drawForm();

async function round() {
  const { state, device } = filters.given();
  const [devices, found, fleet, jobs] = await Promise.all([
    get("/v1/devices"), metrics(),
    listed ? get("/v1/workers", { latest: true, limit: 500 }) : null,
    listed ? get("/v1/jobs", { state: state ?? "failed", device, limit: 100 }) : get("/v1/tunings", { status: "failed", limit: 50 }),
  ]);
  const workers = fleet?.items ?? latest(devices.workers);
  drawFacts(workers, found);
  drawWorkers(workers);
  if (listed) drawJobs(jobs, state ?? "failed"); else drawFailed(jobs.items);
  fault(null);
}

/** The latest worker of each device. */
function latest(workers) {
  const seen = new Set();
  return workers.filter((one) => {
    const device = `${one.host} ${one.device_uuid}`;
    return !seen.has(device) && seen.add(device);
  });
}

const byStatus = (found, name) => Object.fromEntries((found[name] ?? []).map(({ labels, value }) => [labels.status, value]));
const beat = (worker) => worker.heartbeat_age_seconds ?? age(worker.seen_at);
const lives = (worker) => ["idle", "measuring"].includes(worker.status);

function drawFacts(workers, found) {
  const jobs = byStatus(found, "gemmtune_jobs");
  const hosts = new Set(workers.filter(lives).map((one) => one.host));
  refresh(places.facts, facts([
    ["Machines that live", f.count(hosts.size), `of ${new Set(workers.map((one) => one.host)).size}`],
    ["Devices that live", f.count(workers.filter(lives).length), `of ${workers.length}`],
    ["Silent", f.count(workers.filter((one) => one.status === "silent").length), `over ${LATE_SECONDS} s`],
    ...STATES.map((state) => [`Jobs ${state}`, f.count(jobs[state] ?? 0)]),
  ]));
}

function drawWorkers(workers) {
  const rows = [...workers].sort((a, b) => a.host.localeCompare(b.host) || a.device_class.localeCompare(b.device_class) || a.device_uuid.localeCompare(b.device_uuid));
  refresh(places.workers, table({
    caption: "Machines and devices", rows, file: "fleet", empty: "No worker has registered yet: `gemmtune worker` starts one.", marked: (r) => r.status === "silent",
    columns: [
      { name: "Machine", kind: "name", cell: (r) => r.host, value: (r) => r.host },
      { name: "Device class", kind: "name", cell: (r) => r.device_class, value: (r) => r.device_class },
      { name: "Device", kind: "id", cell: (r) => r.device_uuid, value: (r) => r.device_uuid, hint: (r) => r.environment_id },
      { name: "Status", cell: (r) => tag(r.status), value: (r) => r.status },
      { name: "Heartbeat", kind: "n", title: "Seconds since the last one", cell: (r) => (["stopped", "dead"].includes(r.status) ? h("span", { class: "dim" }, f.duration(beat(r))) : h("span", { class: beat(r) > LATE_SECONDS ? "bad" : null }, f.duration(beat(r)))), value: (r) => Math.round(beat(r)) },
      { name: "Job", kind: "id", cell: (r) => r.job_id ?? "–", value: (r) => r.job_id },
      ...(listed ? [
        { name: "Version", cell: (r) => r.version ?? "–", value: (r) => r.version },
        { name: "Last failure", kind: "words", cell: (r) => (r.last_failure ? [h("span", { class: "dim" }, `${f.when(r.last_failure.at)} `), r.last_failure.reason] : "–"), value: (r) => r.last_failure?.reason },
      ] : []),
      { name: "Process", kind: "n", cell: (r) => String(r.pid), value: (r) => r.pid },
      { name: "Since", kind: "n", cell: (r) => f.when(r.started_at), value: (r) => r.started_at },
    ],
  }));
}

function drawForm() {
  const { state, device } = filters.given();
  places.form.replaceChildren(
    filters.choice("state", "Jobs", STATES.map((one) => [one, one]), state ?? "failed", set),
    filters.entry("device", "Device", device, set));
}

function drawJobs(jobs, state) {
  refresh(places.jobs, table({
    caption: `Jobs ${state}`, heading: `Jobs ${state}${jobs.next_cursor ? ", the latest 100" : ""}`, rows: jobs.items, file: `jobs-${state}`, empty: `No job is ${state}.`, tall: true,
    columns: [
      { name: "Job", kind: "id", cell: (r) => r.id, value: (r) => r.id, hint: (r) => r.id },
      { name: "Status", cell: (r) => tag(r.status), value: (r) => r.status },
      { name: "Problem", kind: "name", cell: (r) => h("a", { href: `/leaderboard/${encodeURIComponent(r.problem_id)}${r.session_id ? `?session=${encodeURIComponent(r.session_id)}` : ""}` }, f.problem(r.problem)), value: (r) => r.problem_id },
      { name: "Device class", kind: "name", cell: (r) => r.device_class, value: (r) => r.device_class },
      { name: "Starts", kind: "n", cell: (r) => f.count(r.attempt), value: (r) => r.attempt },
      { name: "Retries", kind: "n", cell: (r) => f.count(r.retries), value: (r) => r.retries },
      { name: "Age", kind: "n", cell: (r) => f.duration(r.age_seconds), value: (r) => r.age_seconds },
      { name: "Tuning", kind: "id", cell: (r) => r.tunings.slice(0, 2).map((one) => [h("a", { href: `/tunings/${encodeURIComponent(one)}` }, one), " "]).flat(), value: (r) => r.tunings.join(" ") },
      { name: "Evidence", kind: "words", cell: evidence, value: (r) => r.error },
    ],
  }));
}

function evidence(row) {
  if (!row.error) return "–";
  if (!row.evidence) return row.error;
  return h("details", {}, h("summary", {}, row.error), h("pre", {}, JSON.stringify(row.evidence, null, 1)));
}

function drawFailed(tunings) {
  refresh(places.jobs, table({
    caption: "Tunings that failed", rows: tunings, file: "failed", empty: "No tuning has failed.",
    columns: [
      { name: "Tuning", kind: "name", cell: (r) => h("a", { href: `/tunings/${encodeURIComponent(r.id)}` }, r.id), value: (r) => r.id },
      { name: "Device class", kind: "name", cell: (r) => r.device_class, value: (r) => r.device_class },
      { name: "Without verdict", kind: "n", cell: (r) => `${f.count(r.failed)} of ${f.count(r.total)}`, value: (r) => r.failed },
      { name: "Ended", kind: "n", cell: (r) => f.when(r.ended_at), value: (r) => r.ended_at },
    ],
  }));
}

function set(name, value) {
  filters.write({ ...filters.given(), [name]: value });
  round().catch(fault);
}

filters.onback(() => { if (listed) drawForm(); round().catch(fault); });
repeat(10, round, fault);
