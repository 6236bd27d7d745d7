/* Charts over uPlot: axes, zoom and theme are its; points and ceilings are drawn here. */

import { download, h } from "./dom.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const SUPERS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const plain = (value) => (value >= 0.001 && value < 1e5 ? String(value) : value.toExponential(0).replace("e+", "e"));

/** A logarithmic axis' lines: 1 to 9 times each power of ten. */
function decades(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) && found.length < 300; power++) {
    for (let lead = 1; lead < 10; lead++) {
      const value = Number(`${lead}e${power}`);
      if (value >= low && value <= high) found.push(value);
    }
  }
  return found;
}

/** A logarithmic axis' label: powers of ten, and 2 and 5 times them where the axis is `narrow`. */
const power = (value, narrow) => {
  const exponent = Math.round(Math.log10(value));
  if (Math.abs(value / 10 ** exponent - 1) > 1e-6) {
    const lead = Math.round(value / 10 ** Math.floor(Math.log10(value) + 1e-9));
    return narrow && (lead === 2 || lead === 5) ? plain(value) : "";
  }
  return exponent >= -2 && exponent <= 4 ? String(10 ** exponent).replace("0.0001", "10⁻⁴") : `10${String(exponent).replace(/./g, (c) => SUPERS[c])}`;
};

/**
 * A chart in a box of its own, with a PNG button and a line for screen readers.
 * `points`: [{x, y, colour, hollow, line: [text]}]; `lines`: [{from: [x, y], to: [x, y], colour, label}];
 * `curves`: [{x, y, colour, step}]; `log`: {x, y}; `range`: {x: [low, high], y: [low, high]}; `pick(point)`.
 */
export function chart({ title, label, x, y, points = [], lines = [], curves = [], log = {}, range = {}, legend = [], height = 340, pick, file, note }) {
  const plot = h("div", { class: "plot" });
  const tip = h("div", { class: "tip", hidden: true });
  const said = h("p", { class: "hidden", "aria-live": "polite" });
  const usable = points.filter((p) => Number.isFinite(p.x) && Number.isFinite(p.y) && (!log.x || p.x > 0) && (!log.y || p.y > 0));
  const box = h("div", { class: "chart", tabindex: "0", role: "group", "aria-label": label }, plot, tip,
    legend.length ? h("div", { class: "legend" }, legend.map(([name, kind]) => h("span", { class: kind }, name))) : null, said);
  const png = h("button", { type: "button", title: "What is shown, as a picture", onclick: () => picture() }, "PNG");
  const whole = h("button", { type: "button", title: "Show everything again", onclick: () => reset() }, "Reset zoom");
  const bar = h("div", { class: "bar" }, h("h2", {}, title), note ? h("span", { class: "sub" }, note) : null, h("div", { class: "tools" }, whole, png));
  const section = h("section", {}, bar, box);
  let made = null, at = -1;

  function ends(values, logarithmic, fixed) {
    if (fixed) return fixed;
    const found = values.filter((v) => Number.isFinite(v) && (!logarithmic || v > 0));
    if (!found.length) return logarithmic ? [1, 10] : [0, 1];
    const low = Math.min(...found), high = Math.max(...found);
    if (logarithmic) return [low / 1.6, high * 1.6];
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [low - room, high + room];
  }
  const xs = [...usable.map((p) => p.x), ...curves.flatMap((c) => c.x)];
  const ys = [...usable.map((p) => p.y), ...curves.flatMap((c) => c.y), ...lines.flatMap((l) => (l.fit ? [l.from[1], l.to[1]] : []))];
  const span = { x: ends(xs, log.x, range.x), y: ends(ys, log.y, range.y) };

  function draw(u) {
    const { ctx, bbox } = u, ratio = devicePixelRatio;
    const px = (value) => u.valToPos(value, "x", true), py = (value) => u.valToPos(value, "y", true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const line of lines) {
      ctx.strokeStyle = ctx.fillStyle = css(line.colour);
      ctx.lineWidth = 1.4 * ratio;
      ctx.setLineDash(line.dashed ? [4 * ratio, 4 * ratio] : []);
      ctx.beginPath();
      ctx.moveTo(px(line.from[0]), py(line.from[1]));
      ctx.lineTo(px(line.to[0]), py(line.to[1]));
      ctx.stroke();
      if (line.label) {
        const [lx, ly] = line.at ?? line.to;
        ctx.font = `${11 * ratio}px system-ui, sans-serif`;
        ctx.textAlign = line.align ?? "right";
        ctx.fillText(line.label, Math.min(px(lx), bbox.left + bbox.width - 4 * ratio), Math.max(py(ly) - (line.rise ?? 5) * ratio, bbox.top + 12 * ratio));
      }
    }
    ctx.setLineDash([]);
    for (const curve of curves) {
      ctx.strokeStyle = css(curve.colour);
      ctx.lineWidth = 1.6 * ratio;
      ctx.beginPath();
      curve.x.forEach((value, i) => {
        if (i && curve.step) ctx.lineTo(px(value), py(curve.y[i - 1]));
        ctx[i ? "lineTo" : "moveTo"](px(value), py(curve.y[i]));
      });
      ctx.stroke();
    }
    usable.forEach((p, i) => {
      const radius = (i === at ? 6 : p.small ? 2 : 3.6) * ratio;
      ctx.beginPath();
      ctx.arc(px(p.x), py(p.y), radius, 0, 2 * Math.PI);
      ctx.strokeStyle = ctx.fillStyle = css(p.colour);
      ctx.globalAlpha = i === at ? 1 : 0.78;
      ctx.lineWidth = 1.3 * ratio;
      if (p.hollow) ctx.stroke(); else ctx.fill();
      if (i === at) { ctx.strokeStyle = css("text"); ctx.stroke(); }
    });
    ctx.restore();
  }

  function mark(index, speak) {
    at = index;
    made.redraw(false, false);
    tip.hidden = index < 0;
    if (index < 0) return;
    const p = usable[index];
    const left = made.over.offsetLeft + made.valToPos(p.x, "x"), top = made.over.offsetTop + made.valToPos(p.y, "y");
    tip.replaceChildren(...p.line.map((text, i) => h("div", {}, i ? text : h("b", {}, text))));
    const width = Math.min(330, box.clientWidth - 20);
    tip.style.left = `${Math.max(8, Math.min(left + 14, box.clientWidth - width - 12))}px`;
    tip.style.top = `${top + 22}px`;
    if (speak) said.textContent = p.line.join(", ");
  }

  function nearest(left, top) {
    let best = -1, least = 22 ** 2;
    usable.forEach((p, i) => {
      const d = (made.valToPos(p.x, "x") - left) ** 2 + (made.valToPos(p.y, "y") - top) ** 2;
      if (d < least) [best, least] = [i, d];
    });
    return best;
  }

  const axis = (text, logarithmic, format) => ({
    label: text, labelSize: 18, labelFont: "12px system-ui, sans-serif", font: "11px system-ui, sans-serif", stroke: css("dim"), size: 52,
    grid: { stroke: css("soft"), width: 1 }, ticks: { stroke: css("line"), width: 1, size: 4 }, gap: 3,
    ...(logarithmic ? { splits: (u, i, low, high) => decades(low, high) } : {}),
    filter: (_, splits) => splits, // all: which are labelled is said below
    values: (_, found) => found.map((value) => (value === null ? "" : logarithmic ? power(value, found.at(-1) / found[0] < 80) : format ? format(value) : String(+value.toPrecision(6)))),
  });

  function build() {
    made?.destroy();
    const scale = (name) => ({ time: false, distr: log[name] ? 3 : 1, log: 10, range: (u, low, high) => u.zoomed?.[name] ?? span[name] });
    const side = box.clientWidth - 14;
    made = new uPlot({
      width: Math.max(220, side), height: Math.min(height, Math.max(240, side * 0.75)), padding: [10, 14, 0, 0],
      scales: { x: scale("x"), y: scale("y") }, legend: { show: false },
      axes: [{ ...axis(x.label, log.x, x.format), size: 34 }, axis(y.label, log.y, y.format)],
      series: [{}, { show: true, paths: () => null, points: { show: false } }],
      cursor: { points: { show: false }, drag: { x: true, y: true, setScale: false }, x: false, y: false },
      hooks: {
        draw: [draw],
        setCursor: [(u) => { if (u.cursor.left >= 0) { const found = nearest(u.cursor.left, u.cursor.top); if (found !== at) mark(found); } }],
        setSelect: [(u) => {
          if (u.select.width < 8 || u.select.height < 8) return;
          const { left, top, width, height: tall } = u.select;
          u.zoomed = { x: [u.posToVal(left, "x"), u.posToVal(left + width, "x")], y: [u.posToVal(top + tall, "y"), u.posToVal(top, "y")] };
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          u.setData(u.data);
        }],
      },
    }, [span.x, span.y], plot);
    made.over.addEventListener("click", () => { if (at >= 0) pick?.(usable[at]); });
    made.over.addEventListener("mouseleave", () => mark(-1));
  }
  function reset() { if (made) { made.zoomed = null; made.setData(made.data); } }

  box.addEventListener("keydown", (event) => {
    if (!usable.length) return;
    const order = usable.map((_, i) => i).sort((a, b) => usable[a].x - usable[b].x || usable[a].y - usable[b].y);
    const place = order.indexOf(at);
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (step) { event.preventDefault(); mark(order[(place + step + order.length) % order.length], true); }
    else if (event.key === "Enter" && at >= 0) pick?.(usable[at]);
    else if (event.key === "Escape") mark(-1);
  });

  function picture() {
    const source = made.ctx.canvas, ratio = devicePixelRatio, top = 34 * ratio, below = legend.length ? 26 * ratio : 8 * ratio;
    const canvas = h("canvas", { width: source.width, height: source.height + top + below });
    const ctx = canvas.getContext("2d");
    ctx.fillStyle = css("panel");
    ctx.fillRect(0, 0, canvas.width, canvas.height);
    ctx.fillStyle = css("text");
    ctx.font = `600 ${14 * ratio}px system-ui, sans-serif`;
    ctx.fillText([title, note].filter(Boolean).join(" · "), 12 * ratio, 22 * ratio, canvas.width - 24 * ratio);
    ctx.drawImage(source, 0, top);
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    let left = 12 * ratio;
    for (const [name, kind] of legend) {
      ctx.fillStyle = css(kind.split(" ")[0]);
      ctx.fillRect(left, canvas.height - 18 * ratio, 9 * ratio, 9 * ratio);
      ctx.fillText(name, left + 14 * ratio, canvas.height - 10 * ratio);
      left += ctx.measureText(name).width + 32 * ratio;
    }
    canvas.toBlob((blob) => download(`${file ?? "gemmtune"}.png`, blob));
  }

  let width = 0;
  const seen = new ResizeObserver(() => {
    if (!box.isConnected || box.clientWidth === width) return;
    width = box.clientWidth;
    build();
  });
  seen.observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (box.isConnected) build(); });
  return section;
}
