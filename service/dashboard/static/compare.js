/* Two devices, environments or times side by side: what got better, worse, or lost. */

import { get, pages } from "./lib/api.js";
import { chart } from "./lib/chart.js";
import { facts, fault, h, show, table, tag } from "./lib/dom.js";
import * as filters from "./lib/filters.js";
import * as f from "./lib/format.js";

const PAGE = 500;
/** Fates of winners that are read, where two environments are compared. */
const FATES = 1000;
const places = { filters: h("form", { class: "filters", "aria-label": "What is compared", onsubmit: (event) => event.preventDefault() }), body: h("div") };
let options = null, asked = null;
show(places.filters, places.body);

function set(name, value) {
  const values = { ...filters.given(), [name]: value };
  if (name === "a" || name === "b") delete values[`${name}_environment`];
  filters.write(values);
  load();
}

/** What is asked of the service. Without a second class, that of A. */
function question(given, a) {
  const { a_environment, b_environment, a_until, b_until, list, dtype, by, only, order } = given;
  return { a, b: given.b || a, a_environment, b_environment, a_until, b_until, list, dtype, by, change: only, order, limit: PAGE };
}

async function load() {
  asked?.abort();
  asked = new AbortController();
  const { signal } = asked;
  options ??= Promise.all([filters.options(), pages("/v1/environments", {}, 2000)]);
  const given = filters.given();
  const read = (a) => get("/v1/compare", question(given, a), { signal });
  try {
    const differs = (a) => (given.b && given.b !== a) || given.a_environment !== given.b_environment || given.a_until !== given.b_until;
    // A class that the address names needs no list of classes first.
    const early = given.a && differs(given.a) ? read(given.a) : null;
    early?.catch(() => {}); // it is awaited below
    const [known, environments] = await options, a = filters.chosen(known.classes, given.a);
    if (!a) { places.body.replaceChildren(h("p", { class: "dim" }, "No device class is known yet: nothing was measured or imported.")); return; }
    drawFilters(a, given.b || a, given, known, environments.items);
    if (!differs(a)) {
      places.body.replaceChildren(h("p", { class: "dim" }, "Both sides are the same. Choose another device class, environment or date for one of them."));
      fault(null);
      return;
    }
    const found = await (early ?? read(a));
    let fates = null;
    const more = async () => {
      const page = await get("/v1/compare", { ...question(given, a), cursor: found.next_cursor }, { signal });
      found.items = found.items.concat(page.items);
      found.next_cursor = page.next_cursor;
      draw(found, fates, more);
    };
    draw(found, fates, more);
    fault(null);
    if (given.a_environment && given.b_environment && (given.b || a) === a) {
      fates = await pages("/v1/diff", { before: given.a_environment, after: given.b_environment }, FATES, { signal });
      draw(found, fates, more);
    }
  } catch (error) {
    if (error.name === "AbortError") return;
    await options.catch(() => { options = null; }); // asked for again with the next load
    fault(error);
  }
}

function drawFilters(a, b, given, { classes, lists }, environments) {
  const focus = document.activeElement?.name;
  const group = (name, title, device) => h("fieldset", {}, h("legend", {}, title),
    filters.choice(name, "Device class", classes.map((c) => [c.id, c.id]), device, set),
    filters.choice(`${name}_environment`, "Environment", [["", "any"], ...environments.filter((e) => e.device_class === device).map((e) => [e.id, `${f.short(e.id)} · ${e.environment.driver || e.environment.runtime} · ${f.when(e.created_at)}`])], given[`${name}_environment`], set),
    filters.entry(`${name}_until`, "As of", given[`${name}_until`], set, "date"));
  places.filters.replaceChildren(
    group("a", "Before (A)", a), group("b", "After (B)", b),
    h("fieldset", {}, h("legend", {}, "Problems"),
      filters.choice("list", "Model or list", [["", "all problems"], ...lists.map((name) => [name, name])], given.list, set),
      filters.choice("only", "Change", [["", "all"], ...["better", "worse", "same", "lost", "new"].map((one) => [one, one])], given.only, set),
      filters.choice("by", "Compare", [["", "times of winners"], ["speedup", "speed-ups over defaults"]], given.by, set)));
  places.filters.elements[focus]?.focus();
}

function draw(found, fates, more) {
  const { only, by } = filters.given(), { problems } = found, percent = found.margin * 100;
  const fate = new Map((fates?.items ?? []).map((one) => [one.problem_id, one]));
  const rows = found.items.map((row) => ({ ...row, fate: fate.get(row.problem_id) ?? null }));
  const value = by === "speedup" ? (row) => row.speedup.mid : (row) => row.seconds * 1e6;
  const colours = { better: "win", worse: "loss", same: "dim" };
  const drawn = rows.filter((row) => row.a && row.b);
  const values = drawn.flatMap((row) => [value(row.a), value(row.b)]).filter((v) => v > 0);
  const low = Math.min(...values, Infinity), high = Math.max(...values, 0);
  const unit = by === "speedup" ? "speed-up over the default" : "µs a call";
  const all = only ? problems[only] : problems.better + problems.worse + problems.same + problems.lost + problems.new;
  const descending = found.order === "desc";
  places.body.replaceChildren(
    facts([
      ["On both sides", f.count(problems.both), `${f.count(problems.a)} in A, ${f.count(problems.b)} in B`], ["Better", f.count(problems.better), `by over ${percent}%`], ["Worse", f.count(problems.worse)],
      ["The same", f.count(problems.same)], ["Lost", f.count(problems.lost), "no verdict in B"], ["New", f.count(problems.new), "no verdict in A"], ["B over A", f.ratio(found.geometric_mean), "geometric mean"],
    ]),
    fates?.more ? h("p", { class: "warn" }, `What became of A's winners in B is shown of the first ${f.count(FATES)} of them.`) : "",
    h("div", { class: "columns" }, distribution(found),
    drawn.length ? chart({
      title: "A and B", note: `${f.count(drawn.length)} of ${f.count(problems.both)} problems; ${by === "speedup" ? "above the line B gains more" : "below the line B is faster"}`, file: "compare", height: 320, label: "A and B; arrow keys step through the problems",
      x: { label: `A: ${unit}` }, y: { label: `B: ${unit}` }, log: { x: true, y: true }, range: { x: [low / 1.3, high * 1.3], y: [low / 1.3, high * 1.3] },
      lines: [{ from: [low / 1.3, low / 1.3], to: [high * 1.3, high * 1.3], colour: "dim", dashed: true }], legend: [["better", "win"], ["worse", "loss"], ["the same", "dim"]],
      points: drawn.map((row) => ({ x: value(row.a), y: value(row.b), colour: colours[row.change], row, line: [f.problem(row.problem), `${f.time(row.a.seconds)} in A, ${f.time(row.b.seconds)} in B`, `${f.ratio(row.ratio)}: ${row.change}`] })),
      pick: (p) => location.assign(link(p.row)),
    }) : ""),
    table({
      caption: "Problems", heading: `Problems: ${f.count(rows.length)} of ${f.count(all)}`, rows, file: "compare", tall: true, empty: "No problem with these filters.", sorted: { key: "ratio", descending },
      onsort: (_, down) => set("order", down ? "desc" : ""),
      tools: found.next_cursor ? [h("button", { type: "button", onclick: (event) => { event.target.disabled = true; more().catch(fault); } }, "Show more")] : [],
      columns: [
        { name: "Problem", kind: "name", cell: (r) => h("a", { href: link(r) }, f.problem(r.problem)), value: (r) => r.problem_id },
        { name: "Change", cell: (r) => tag(r.change), value: (r) => r.change },
        { name: "B over A", kind: "n", sort: "ratio", title: by === "speedup" ? "B's speed-up over A's" : "A's time over B's", cell: (r) => f.ratio(r.ratio), value: (r) => r.ratio },
        { name: "A: time", kind: "n", cell: (r) => f.time(r.a?.seconds), value: (r) => r.a?.seconds }, { name: "B: time", kind: "n", cell: (r) => f.time(r.b?.seconds), value: (r) => r.b?.seconds },
        { name: "A: speed-up", kind: "n", cell: (r) => f.ratio(r.a?.speedup.mid), value: (r) => r.a?.speedup.mid }, { name: "B: speed-up", kind: "n", cell: (r) => f.ratio(r.b?.speedup.mid), value: (r) => r.b?.speedup.mid },
        { name: "A: winner", kind: "id", cell: (r) => r.a?.winner_id ?? "–", value: (r) => r.a?.winner_id, hint: (r) => r.a?.winner_id }, { name: "B: winner", kind: "id", cell: (r) => r.b?.winner_id ?? "–", value: (r) => r.b?.winner_id, hint: (r) => r.b?.winner_id },
        ...(fates ? [{ name: "A's winner in B", cell: (r) => (r.fate ? tag(r.fate.fate, r.fate.reason) : "–"), value: (r) => r.fate?.fate }, { name: "Why", kind: "words", cell: (r) => r.fate?.reason ?? "–", value: (r) => r.fate?.reason }] : []),
      ],
    }));
}

/** Of all problems of both sides, how many gained at least so much. */
function distribution(found) {
  if (!found.curve.length) return "";
  const { curve } = found;
  return chart({
    title: "B over A", note: `share of ${f.count(found.problems.both)} problems with at least this ratio`, file: "compare-ratios", height: 320, label: "Distribution of B over A; arrow keys step through its points",
    x: { label: "B over A", format: (v) => `${v}×` }, y: { label: "share of problems", format: (v) => `${Math.round(v * 100)}%` }, log: { x: true }, range: { x: [curve[0].p / 1.05, curve.at(-1).p * 1.05], y: [0, 1.04] },
    curves: [{ x: curve.map((one) => one.p), y: curve.map((one) => one.share), colour: "s1" }],
    points: curve.map((one) => ({ x: one.p, y: one.share, colour: "s1", line: [`at least ${one.p}×`, `${f.percent(one.share, 1)} of problems (${f.count(one.problems)})`] })),
  });
}

const link = (row) => `/leaderboard/${encodeURIComponent(row.problem_id)}?session=${encodeURIComponent((row.b ?? row.a).session_id)}`;

filters.onback(load);
load();
