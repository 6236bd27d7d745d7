/* Two devices, environments or times side by side: what got better, worse, or lost. */

import { get, pages } from "./lib/api.js";
import { chart } from "./lib/chart.js";
import { facts, fault, h, show, table, tag } from "./lib/dom.js";
import * as filters from "./lib/filters.js";
import * as f from "./lib/format.js";

const MOST = 1000;
/** Times that differ by less are the same: the margin of a WIN. */
const MARGIN = 0.02;
const places = { filters: h("form", { class: "filters", "aria-label": "What is compared", onsubmit: (event) => event.preventDefault() }), body: h("div") };
let options = null;
show(places.filters, places.body);

function set(name, value) {
  const values = { ...filters.given(), [name]: value };
  if (name === "a" || name === "b") delete values[`${name}_environment`];
  filters.write(values);
  load();
}

async function load() {
  try {
    options ??= { classes: await filters.classes(), lists: await filters.lists(), environments: (await pages("/v1/environments", {}, 2000)).items };
    const given = filters.given();
    const a = filters.chosen(options.classes, given.a);
    if (!a) { places.body.replaceChildren(h("p", { class: "dim" }, "No device class is known yet: nothing was measured or imported.")); return; }
    const b = given.b || a;
    drawFilters(a, b, given);
    const sides = [side(a, given, "a"), side(b, given, "b")];
    if (JSON.stringify(sides[0]) === JSON.stringify(sides[1])) {
      places.body.replaceChildren(h("p", { class: "dim" }, "Both sides are the same. Choose another device class, environment or date for one of them."));
      fault(null);
      return;
    }
    const [before, after] = await Promise.all(sides.map((query) => pages("/v1/leaderboard", query, MOST)));
    draw(join(before, after, await fates(a, b, given)), before, after);
    fault(null);
  } catch (error) {
    fault(error);
  }
}

const side = (device, given, name) => ({ device, environment: given[`${name}_environment`], until: given[`${name}_until`], list: given.list, dtype: given.dtype, sort: "problem" });

/** What became of the winners of one environment in another, where two of one class are compared. */
async function fates(a, b, given) {
  if (a !== b || !given.a_environment || !given.b_environment) return null;
  return pages("/v1/diff", { before: given.a_environment, after: given.b_environment }, MOST);
}

function drawFilters(a, b, given) {
  const focus = document.activeElement?.name;
  const group = (name, title, device) => h("fieldset", {}, h("legend", {}, title),
    filters.choice(name, "Device class", options.classes.map((c) => [c.id, c.id]), device, set),
    filters.choice(`${name}_environment`, "Environment", [["", "any"], ...options.environments.filter((e) => e.device_class === device).map((e) => [e.id, `${f.short(e.id)} · ${e.environment.driver || e.environment.runtime} · ${f.when(e.created_at)}`])], given[`${name}_environment`], set),
    filters.entry(`${name}_until`, "As of", given[`${name}_until`], set, "date"));
  places.filters.replaceChildren(
    group("a", "Before (A)", a), group("b", "After (B)", b),
    h("fieldset", {}, h("legend", {}, "Problems"),
      filters.choice("list", "Model or list", [["", "all problems"], ...options.lists.map((name) => [name, name])], given.list, set),
      filters.choice("only", "Change", [["", "all"], ...["better", "worse", "same", "lost", "new"].map((one) => [one, one])], given.only, set),
      filters.choice("by", "Compare", [["", "times of winners"], ["speedup", "speed-ups over defaults"]], given.by, set)));
  places.filters.elements[focus]?.focus();
}

/** A row for each problem of either side. ratio > 1: B is faster, or gains more. */
function join(before, after, found) {
  const speedup = (row) => (row.judgement === "WIN" ? row.speedup.mid : 1);
  const relative = filters.given().by === "speedup";
  const rows = new Map(before.items.map((row) => [row.problem_id, { problem_id: row.problem_id, problem: row.problem, a: row, b: null }]));
  for (const row of after.items) {
    const known = rows.get(row.problem_id);
    if (known) known.b = row; else rows.set(row.problem_id, { problem_id: row.problem_id, problem: row.problem, a: null, b: row });
  }
  const fate = new Map((found?.items ?? []).map((one) => [one.problem_id, one]));
  // Where a side has more problems than were read, one that a side lacks may be among the rest.
  const whole = !before.more && !after.more;
  return [...rows.values()].filter((row) => whole || (row.a && row.b)).map((row) => {
    const ratio = row.a && row.b ? (relative ? speedup(row.b) / speedup(row.a) : row.a.seconds / row.b.seconds) : null;
    const change = !row.b ? "lost" : !row.a ? "new" : ratio > 1 + MARGIN ? "better" : ratio < 1 / (1 + MARGIN) ? "worse" : "same";
    return { ...row, ratio, change, fate: fate.get(row.problem_id) ?? null };
  });
}

function draw(rows, before, after) {
  const { only, by } = filters.given();
  const count = (name) => rows.filter((row) => row.change === name).length;
  const both = rows.filter((row) => row.ratio > 0 && Number.isFinite(row.ratio));
  const mean = both.length ? Math.exp(both.reduce((sum, row) => sum + Math.log(row.ratio), 0) / both.length) : null;
  const shown = rows.filter((row) => !only || row.change === only);
  const value = by === "speedup" ? (row) => (row ? row.speedup.mid : null) : (row) => (row ? row.seconds * 1e6 : null);
  const colours = { better: "win", worse: "loss", same: "dim" };
  const drawn = shown.filter((row) => row.a && row.b);
  const values = drawn.flatMap((row) => [value(row.a), value(row.b)]).filter((v) => v > 0);
  const low = Math.min(...values, Infinity), high = Math.max(...values, 0), fate = rows.some((row) => row.fate);
  const unit = by === "speedup" ? "speed-up over the default" : "µs a call";
  places.body.replaceChildren(
    facts([
      ["On both sides", f.count(both.length), `${f.count(before.problems.all)} in A, ${f.count(after.problems.all)} in B`], ["Better", f.count(count("better")), `by over ${MARGIN * 100}%`], ["Worse", f.count(count("worse"))],
      ["The same", f.count(count("same"))], ["Lost", f.count(count("lost")), "no verdict in B"], ["New", f.count(count("new")), "no verdict in A"], ["B over A", f.ratio(mean), "geometric mean"],
    ]),
    before.more || after.more ? h("p", { class: "warn" }, `Only problems that are among the first ${f.count(MOST)} of both sides are compared, and none counts as lost or new. Choose a list to see all of it.`) : "",
    drawn.length ? chart({
      title: "A and B", note: by === "speedup" ? "above the line B gains more" : "below the line B is faster", file: "compare", height: 320, label: "A and B; arrow keys step through the problems",
      x: { label: `A: ${unit}` }, y: { label: `B: ${unit}` }, log: { x: true, y: true }, range: { x: [low / 1.3, high * 1.3], y: [low / 1.3, high * 1.3] },
      lines: [{ from: [low / 1.3, low / 1.3], to: [high * 1.3, high * 1.3], colour: "dim", dashed: true }], legend: [["better", "win"], ["worse", "loss"], ["the same", "dim"]],
      points: drawn.map((row) => ({ x: value(row.a), y: value(row.b), colour: colours[row.change], row, line: [f.problem(row.problem), `${f.time(row.a.seconds)} in A, ${f.time(row.b.seconds)} in B`, `${f.ratio(row.ratio)}: ${row.change}`] })),
      pick: (p) => location.assign(link(p.row)),
    }) : "",
    table({
      caption: "Problems", heading: `Problems: ${f.count(shown.length)}`, rows: shown, file: "compare", tall: true, empty: "No problem with these filters.", sorted: { key: "B over A", descending: false },
      columns: [
        { name: "Problem", kind: "name", cell: (r) => h("a", { href: link(r) }, f.problem(r.problem)), value: (r) => r.problem_id },
        { name: "Change", cell: (r) => tag(r.change), value: (r) => r.change },
        { name: "B over A", kind: "n", title: by === "speedup" ? "B's speed-up over A's" : "A's time over B's", cell: (r) => f.ratio(r.ratio), value: (r) => r.ratio },
        { name: "A: time", kind: "n", cell: (r) => f.time(r.a?.seconds), value: (r) => r.a?.seconds }, { name: "B: time", kind: "n", cell: (r) => f.time(r.b?.seconds), value: (r) => r.b?.seconds },
        { name: "A: speed-up", kind: "n", cell: (r) => f.ratio(r.a?.speedup.mid), value: (r) => r.a?.speedup.mid }, { name: "B: speed-up", kind: "n", cell: (r) => f.ratio(r.b?.speedup.mid), value: (r) => r.b?.speedup.mid },
        { name: "A: winner", kind: "id", cell: (r) => r.a?.winner_id ?? "–", value: (r) => r.a?.winner_id, hint: (r) => r.a?.winner_id }, { name: "B: winner", kind: "id", cell: (r) => r.b?.winner_id ?? "–", value: (r) => r.b?.winner_id, hint: (r) => r.b?.winner_id },
        ...(fate ? [{ name: "A's winner in B", cell: (r) => (r.fate ? tag(r.fate.fate, r.fate.reason) : "–"), value: (r) => r.fate?.fate }, { name: "Why", kind: "words", cell: (r) => r.fate?.reason ?? "–", value: (r) => r.fate?.reason }] : []),
      ],
    }));
}

const link = (row) => `/leaderboard/${encodeURIComponent(row.problem_id)}?session=${encodeURIComponent((row.b ?? row.a).session_id)}`;

filters.onback(load);
load();
