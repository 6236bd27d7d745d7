/* Problems, or the candidates of one, against the measured ceilings of their device. */

import { get } from "./lib/api.js";
import { chart } from "./lib/chart.js";
import { facts, fault, h, meter, show, table, tag } from "./lib/dom.js";
import * as filters from "./lib/filters.js";
import * as f from "./lib/format.js";

const PAGE = 500;
/** Which problems are shown first, in words, and how they are asked for. */
const ORDERS = { "": ["those that save most", {}], roofline: ["those farthest from their roof", { sort: "roofline", order: "asc" }] };
const COLOURS = ["s1", "s2", "s3", "s4", "s5", "s6"];
const places = { filters: h("form", { class: "filters", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() }), body: h("div") };
let options = null, asked = null;
show(places.filters, places.body);

function set(name, value) {
  const values = { ...filters.given(), [name]: value };
  if (name === "device") { delete values.problem; delete values.session; }
  filters.write(values);
  load();
}

async function load() {
  asked?.abort();
  asked = new AbortController();
  const { signal } = asked;
  options ??= filters.options();
  const given = filters.given();
  const question = (device) => {
    const { list, dtype, family, policy } = given;
    return given.problem ? { device, policy, problem: given.problem } : { device, list, dtype, family, policy, ...(ORDERS[given.sort] ?? ORDERS[""])[1] };
  };
  const read = (device) => Promise.all([
    get("/v1/ceilings", { device, policy: given.policy }, { signal }), get("/v1/leaderboard", { ...question(device), limit: PAGE, by: "dtype" }, { signal }),
    given.problem ? candidates(given, signal) : null,
  ]);
  try {
    // A class that the address names needs no list of classes first.
    const early = given.device ? read(given.device) : null;
    early?.catch(() => {}); // it is awaited below
    const known = await options, device = filters.chosen(known.classes, given.device);
    if (!device) { places.body.replaceChildren(h("p", { class: "dim" }, "No device class is known yet: nothing was measured or imported.")); return; }
    const [ceilings, board, one] = await (early ?? read(device));
    drawFilters(device, board.groups, given, known);
    const redraw = () => draw(ceilings, board, one ? ofProblem(one, board) : ofBoard(board, given), given, more);
    const more = async () => {
      const page = await get("/v1/leaderboard", { ...question(device), limit: 1000, cursor: board.next_cursor }, { signal });
      board.items = board.items.concat(page.items);
      board.next_cursor = page.next_cursor;
      redraw();
    };
    redraw();
    fault(null);
  } catch (error) {
    if (error.name === "AbortError") return;
    // What is asked may be what is wrong: it can be chosen anew.
    await options.then((known) => drawFilters(given.device, [], given, known), () => { options = null; });
    fault(error);
  }
}

function drawFilters(device, types, given, { classes, lists }) {
  const focus = document.activeElement?.name;
  places.filters.replaceChildren(
    filters.choice("device", "Device class", classes.map((c) => [c.id, c.id]), device, set),
    filters.choice("list", "Model or list", [["", "all problems"], ...lists.map((name) => [name, name])], given.list, set),
    filters.choice("dtype", "Type of A", [["", "all"], ...types.map((g) => [g.name, `${g.name} (${g.problems.all})`])], given.dtype, set),
    filters.choice("sort", "First", Object.entries(ORDERS).map(([name, [words]]) => [name, words]), given.sort, set),
    filters.choice("shown", "Points", [["", "winners"], ["both", "winners and defaults"]], given.shown, set),
    ...(given.problem ? [h("button", { type: "button", onclick: () => { const { problem, session, ...values } = filters.given(); filters.write(values); load(); } }, "All problems")] : []));
  places.filters.elements[focus]?.focus();
}

const typeOf = (problem) => (problem.compute === "tf32" ? "tf32" : problem.dtype_a ?? problem.dtype ?? "fp32");

/** A point of each problem's winner, and of its default where both are asked for. */
function ofBoard(board, given) {
  const kinds = [...new Set(board.items.map((row) => typeOf(row.problem)))].sort();
  const colour = Object.fromEntries(kinds.map((kind, i) => [kind, COLOURS[i % COLOURS.length]]));
  const points = board.items.flatMap((row) => {
    const made = [{
      x: row.flops / row.bytes, y: row.flops / row.seconds, colour: colour[typeOf(row.problem)], row,
      line: [f.problem(row.problem), row.winner_id, `${f.si(row.flops / row.seconds, "FLOP/s")} in ${f.time(row.seconds)}`,
        row.roofline_share === null ? "its ceiling was not measured" : `${f.percent(row.roofline_share)} of its roofline; bound by ${row.binds}`,
        `${row.judgement}, ${f.ratio(row.speedup.mid)} over ${row.baseline_name}`],
    }];
    if (given.shown === "both") made.push({
      x: row.flops / row.bytes, y: row.flops / row.baseline_seconds, colour: colour[typeOf(row.problem)], hollow: true, row,
      line: [f.problem(row.problem), `default: ${row.baseline_name}`, `${f.si(row.flops / row.baseline_seconds, "FLOP/s")} in ${f.time(row.baseline_seconds)}`],
    });
    return made;
  });
  const legend = kinds.map((kind) => [kind, colour[kind]]);
  if (given.shown === "both") legend.push(["hollow: the default", "dim"]);
  return { points, legend, title: `${f.count(board.items.length)} of ${f.count(board.problems.all)} problems`, kinds, colour, rows: board.items };
}

/** A problem with the candidates of a session. */
function candidates(given, signal) {
  const path = `/v1/problems/${encodeURIComponent(given.problem)}`;
  return Promise.all([
    get(path, {}, { signal }), get(`${path}/measurements`, { view: "leaderboard", device: given.session ? null : given.device, session: given.session }, { signal }),
  ]);
}

/** A point of each candidate of a problem: all have its intensity. */
function ofProblem([problem, ranked], board) {
  const [row] = board.items, kind = typeOf(problem.problem), parts = { winner: "s4", default: "s2" };
  const points = !row ? [] : ranked.items.filter((one) => one.seconds !== null && one.standing !== "failed").map((one) => ({
    x: row.flops / row.bytes, y: row.flops / one.seconds, colour: parts[one.standing] ?? "s1", hollow: one.phase === "screen", row,
    line: [one.solution.id, `${f.si(row.flops / one.seconds, "FLOP/s")} in ${f.time(one.seconds)} (${one.phase})`, one.reason],
  }));
  return { points: points.reverse(), legend: [["winner", "s4"], ["default", "s2"], ["others", "s1"], ["hollow: screened alone", "dim"]], title: `Candidates of ${f.problem(problem.problem)}`,
    kinds: [kind], colour: { [kind]: "s3" }, rows: board.items };
}

/** The memory ceiling up to the highest compute ceiling, and a level for each type that is shown. */
function roof(ceilings, drawn) {
  const xs = drawn.points.map((p) => p.x).filter((x) => x > 0);
  const low = Math.min(1, ...xs) / 2, high = Math.max(1000, ...xs) * 3, bandwidth = ceilings.bytes_per_second;
  const levels = Object.entries(ceilings.flops_per_second).filter(([kind]) => !drawn.kinds.length || drawn.kinds.includes(kind)).sort((a, b) => a[1] - b[1]);
  const lines = levels.map(([kind, rate]) => ({
    from: [bandwidth ? rate / bandwidth : low, rate], to: [high, rate], colour: drawn.colour[kind] ?? "dim", label: `${kind} ${f.si(rate, "FLOP/s")}`, at: [high, rate], fit: true,
  }));
  const top = levels.at(-1)?.[1] ?? (bandwidth ? bandwidth * high : null);
  if (bandwidth) {
    const end = top / bandwidth;
    lines.push({ from: [low, bandwidth * low], to: [end, top], colour: "dim", label: `memory ${f.si(bandwidth, "B/s")}`, at: [Math.sqrt(low * end), bandwidth * Math.sqrt(low * end)], align: "left", rise: -16 });
  }
  return { lines, x: [low, high], top };
}

function draw(ceilings, board, drawn, given, more) {
  const { lines, x, top } = roof(ceilings, drawn);
  const ys = drawn.points.map((p) => p.y).filter((y) => y > 0);
  const none = ceilings.bytes_per_second === null && !Object.keys(ceilings.flops_per_second).length;
  const bound = board.binds, shares = board.roofline;
  places.body.replaceChildren(
    facts([
      ["Memory ceiling", ceilings.bytes_per_second ? f.si(ceilings.bytes_per_second, "B/s") : "not measured"],
      ...Object.entries(ceilings.flops_per_second).map(([kind, rate]) => [`${kind} ceiling`, f.si(rate, "FLOP/s")]),
      ["Bound by memory", f.count(bound.memory), `${f.count(bound.compute)} by compute`], ["Mean share", f.percent(shares.mean), `of ${f.count(shares.problems)}`],
    ]),
    none ? h("p", { class: "warn" }, "No ceiling of this class was measured: the points have no roof. A tuning on a device of it measures them.") : "",
    chart({
      title: drawn.title, note: board.next_cursor ? (ORDERS[given.sort] ?? ORDERS[""])[0] : null, file: "roofline", height: 480, label: "Roofline; arrow keys step through the points, Enter opens one",
      x: { label: "operations per byte" }, y: { label: "operations per second" }, log: { x: true, y: true }, legend: drawn.legend, lines, points: drawn.points,
      range: { x, y: [Math.min(...ys, top ?? Infinity, 1e12) / 3, Math.max(...ys, top ?? 0, 10) * 2.5] },
      pick: (p) => location.assign(`/leaderboard/${encodeURIComponent(p.row.problem_id)}?device=${encodeURIComponent(board.device_class)}&session=${encodeURIComponent(p.row.session_id)}`),
    }),
    table({
      caption: "Problems by their distance to the roof", heading: `Problems by their distance to the roof: ${f.count(drawn.rows.length)} of ${f.count(board.problems.all)}`, rows: drawn.rows,
      tools: board.next_cursor ? [h("button", { type: "button", onclick: (event) => { event.target.disabled = true; more().catch(fault); } }, "Show more")] : [], file: "roofline", tall: true, empty: "No verdict with these filters.", sorted: { key: "Of roofline", descending: false },
      columns: [
        { name: "Problem", kind: "name", cell: (r) => h("a", { href: `?${new URLSearchParams({ ...given, device: board.device_class, problem: r.problem_id, session: r.session_id })}` }, f.problem(r.problem)), value: (r) => r.problem_id },
        { name: "Of roofline", kind: "n", cell: (r) => [f.percent(r.roofline_share), r.roofline_share === null ? null : meter(r.roofline_share, `bound by ${r.binds}`, 60)], value: (r) => r.roofline_share },
        { name: "Bound by", cell: (r) => r.binds ?? "–", value: (r) => r.binds },
        { name: "Intensity", kind: "n", title: "Operations per byte", cell: (r) => f.digits(r.flops / r.bytes), value: (r) => r.flops / r.bytes },
        { name: "Rate", kind: "n", cell: (r) => f.si(r.flops / r.seconds, "FLOP/s"), value: (r) => r.flops / r.seconds },
        { name: "Traffic", kind: "n", title: "Operands and result, each once, per second", cell: (r) => f.si(r.bytes / r.seconds, "B/s"), value: (r) => r.bytes / r.seconds },
        { name: "Time", kind: "n", cell: (r) => f.time(r.seconds), value: (r) => r.seconds },
        { name: "Verdict", cell: (r) => tag(r.judgement), value: (r) => r.judgement },
        { name: "Winner", kind: "id", cell: (r) => r.winner_id, value: (r) => r.winner_id, hint: (r) => r.winner_id },
      ],
    }));
}

filters.onback(load);
load();
