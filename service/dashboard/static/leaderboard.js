/* Problems of a device class, ranked; and what all of them say together. */

import { get } from "./lib/api.js";
import { chart } from "./lib/chart.js";
import { facts, fault, h, meter, show, split, table, tag } from "./lib/dom.js";
import * as filters from "./lib/filters.js";
import * as f from "./lib/format.js";

const PAGE = 100;
const NAMES = ["device", "list", "dtype", "family", "judgement", "binds", "judged", "policy", "sort", "order"];
const places = { filters: h("form", { class: "filters", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() }), facts: h("div"), charts: h("div", { class: "columns" }), table: h("div") };
let options = null, asked = null;
show(...Object.values(places));

function set(name, value) {
  const values = { ...filters.given(), [name]: value };
  if (name === "device") { delete values.policy; delete values.judged; }
  filters.write(values);
  load();
}

async function load() {
  asked?.abort();
  asked = new AbortController();
  const { signal } = asked;
  options ??= filters.options();
  const given = filters.given();
  const query = Object.fromEntries(NAMES.map((name) => [name, given[name]]));
  const rank = (device) => get("/v1/leaderboard", { ...query, device, limit: PAGE, by: ["family", "dtype"] }, { signal });
  try {
    // A class that the address names needs no list of classes first.
    const early = given.device ? rank(given.device) : null;
    early?.catch(() => {}); // it is awaited below
    const known = await options, device = filters.chosen(known.classes, given.device);
    if (!device) { places.table.replaceChildren(h("p", { class: "dim" }, "No device class is known yet: nothing was measured or imported.")); return; }
    const board = await (early ?? rank(device)), ask = { ...query, device };
    const groups = (by) => board.groups.filter((group) => group.by === by);
    drawFilters(ask, groups("family"), groups("dtype"), known);
    drawFacts(board);
    drawTable(board, ask);
    drawCharts(board, groups("family"), ask);
    fault(null);
  } catch (error) {
    if (error.name === "AbortError") return;
    // What is asked may be what is wrong: it can be chosen anew.
    await options.then((known) => drawFilters({ ...query, device: given.device }, [], [], known), () => { options = null; });
    fault(error);
  }
}

function drawFilters(ask, families, types, { classes, lists, judged: kernels }) {
  const judged = kernels[ask.device] ?? [], focus = document.activeElement?.name;
  const counted = (groups) => groups.map((g) => [g.name, `${g.name} (${g.problems.all})`]);
  places.filters.replaceChildren(
    filters.choice("device", "Device class", classes.map((c) => [c.id, c.id]), ask.device, set),
    filters.choice("list", "Model or list", [["", "all problems"], ...lists.map((name) => [name, name])], ask.list, set),
    filters.choice("dtype", "Type of A", [["", "all"], ...counted(types)], ask.dtype, set),
    filters.choice("family", "Winner's family", [["", "all"], ...counted(families)], ask.family, set),
    filters.choice("judgement", "Verdict", [["", "all"], ["WIN", "WIN"], ["TIE", "TIE"], ["LOSS", "LOSS"]], ask.judgement, set),
    filters.choice("binds", "Bound by", [["", "all"], ["memory", "memory"], ["compute", "compute"]], ask.binds, set),
    ...(judged.length || ask.judged ? [filters.choice("judged", "Verdicts of", [["", "winners"], ...judged.map((name) => [name, `${name} (judged)`])], ask.judged, set)] : []),
  );
  places.filters.elements[focus]?.focus();
}

function drawFacts(board) {
  const { problems, seconds, roofline } = board;
  places.facts.replaceChildren(facts([
    ["Problems", f.count(problems.all), board.uncounted ? `${f.count(board.uncounted)} without counted calls` : null],
    ["Geometric mean", f.ratio(board.geometric_mean), "of speed-ups"],
    ["Of all calls", f.ratio(seconds.speedup), "call-weighted"],
    ["Saved", f.time(seconds.saved), `of ${f.time(seconds.baseline)}`],
    ["WIN · TIE · LOSS", split(problems, 70), `${problems.win} · ${problems.tie} · ${problems.loss}`],
    ["Of roofline", f.percent(roofline.mean), `mean of ${f.count(roofline.problems)}`],
    ["Bound by", f.count(board.binds.memory), `memory, ${f.count(board.binds.compute)} compute`],
  ]));
}

function drawCharts(board, families, ask) {
  const curve = board.fast_p.filter((one) => one.share > 0 || one.p <= 2);
  const fast = chart({
    title: "fast_p", note: "share of problems with a speed-up of at least p", file: "fast-p", height: 250, label: "fast_p curve; arrow keys step through its points",
    x: { label: "p", format: (v) => `${v}×` }, y: { label: "share of problems", format: (v) => `${Math.round(v * 100)}%` }, range: { y: [0, 1.04] },
    curves: [{ x: curve.map((one) => one.p), y: curve.map((one) => one.share), colour: "s1" }],
    points: curve.map((one) => ({ x: one.p, y: one.share, colour: "s1", line: [`p = ${one.p}×`, `${f.percent(one.share, 1)} of problems (${f.count(one.problems)})`] })),
  });
  const table_ = table({
    caption: ask.judged ? "Families" : "Families of the winners", rows: families, file: "families", empty: "No verdict with these filters.",
    columns: [
      { name: "Family", kind: "name", cell: (r) => h("button", { type: "button", class: "plain", onclick: () => set("family", r.name === ask.family ? "" : r.name) }, r.name), value: (r) => r.name },
      { name: "Problems", kind: "n", cell: (r) => f.count(r.problems.all), value: (r) => r.problems.all },
      { name: "WIN · TIE · LOSS", cell: (r) => split(r.problems, 60) },
      { name: "Geo. mean", kind: "n", cell: (r) => f.ratio(r.geometric_mean), value: (r) => r.geometric_mean },
      { name: "Saved", kind: "n", cell: (r) => f.time(r.seconds.saved), value: (r) => r.seconds.saved },
      { name: "Roofline", kind: "n", cell: (r) => f.percent(r.roofline.mean), value: (r) => r.roofline.mean },
    ],
    marked: (r) => r.name === ask.family,
  });
  places.charts.replaceChildren(fast, table_);
}

export function link(row, device) {
  return `/leaderboard/${encodeURIComponent(row.problem_id)}?device=${encodeURIComponent(device)}&session=${encodeURIComponent(row.session_id)}`;
}

function drawTable(board, ask) {
  let rows = board.items.map((row, i) => ({ rank: i + 1, ...row })), cursor = board.next_cursor;
  const more = async () => {
    const page = await get("/v1/leaderboard", { ...ask, limit: 500, cursor });
    rows = rows.concat(page.items.map((row, i) => ({ rank: rows.length + i + 1, ...row })));
    cursor = page.next_cursor;
    draw();
  };
  function draw() {
    const next = cursor ? h("button", { type: "button", onclick: (event) => { event.target.disabled = true; more().catch(fault); } }, "Show more") : null;
    places.table.replaceChildren(table({
      caption: "Problems", rows, file: `leaderboard-${board.device_class}`, empty: "No verdict with these filters.", tall: true,
      heading: `Problems: ${f.count(rows.length)} of ${f.count(board.problems.all)}`, sorted: { key: board.sort, descending: board.order === "desc" },
      onsort: (sort, descending) => { filters.write({ ...filters.given(), sort, order: descending ? "desc" : "asc" }); load(); },
      tools: [next].filter(Boolean),
      columns: [
        { name: "#", kind: "n", cell: (r) => String(r.rank), value: (r) => r.rank },
        { name: "Problem", kind: "name", cell: (r) => h("a", { href: link(r, ask.device) }, f.problem(r.problem)), value: (r) => r.problem_id },
        { name: "Verdict", cell: (r) => tag(r.judgement), value: (r) => r.judgement },
        { name: "Speed-up", kind: "n", sort: "speedup", title: `Default's time over the ${board.judged ? "kernel" : "winner"}'s, with its interval`, value: (r) => r.speedup.mid,
          cell: (r) => [f.ratio(r.speedup.mid), h("small", {}, ` ${f.between(r.speedup.low, r.speedup.high, f.digits)}`)] },
        { name: "Time", kind: "n", sort: "seconds", first: "asc", cell: (r) => f.time(r.seconds), value: (r) => r.seconds },
        { name: "Default", kind: "n", cell: (r) => f.time(r.baseline_seconds), value: (r) => r.baseline_seconds, hint: (r) => r.baseline_name },
        { name: "Calls", kind: "n", cell: (r) => f.count(r.calls), value: (r) => r.calls },
        { name: "Saved", kind: "n", sort: "saved", title: "Of all its calls", cell: (r) => f.time(r.saved_seconds), value: (r) => r.saved_seconds },
        { name: "Rate", kind: "n", title: "Operations per second", cell: (r) => f.si(r.flops / r.seconds, "FLOP/s"), value: (r) => r.flops / r.seconds },
        { name: "Roofline", kind: "n", sort: "roofline", cell: (r) => [f.percent(r.roofline_share), r.roofline_share === null ? null : meter(r.roofline_share, `bound by ${r.binds}`, 40)], value: (r) => r.roofline_share },
        { name: "Bound by", cell: (r) => r.binds ?? "–", value: (r) => r.binds },
        { name: board.judged ? "Kernel" : "Winner", kind: "id", cell: (r) => r.winner_id, value: (r) => r.winner_id, hint: (r) => r.winner_id },
        { name: "Tied", kind: "n", cell: (r) => f.count(r.tied), value: (r) => r.tied, title: "Candidates that tie with the winner" },
        { name: "Decided", kind: "n", sort: "decided", cell: (r) => f.when(r.decided_at), value: (r) => r.decided_at },
      ],
    }));
  }
  draw();
}

filters.onback(load);
load();
