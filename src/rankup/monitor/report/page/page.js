// Draws the figures of a page, which `figures.py` built for Plotly, and keeps those over time in
// step. What fails is said on the page, whose tables are there without any of it.

const MARGIN = { l: 118, r: 14, t: 8, b: 38 };
const LINES_MOST = 16; // rows that may be drawn as lines
const AXIS = { gridcolor: "--line", zeroline: false, ticks: "outside", ticklen: 3, tickcolor: "--line" };
const BASE = {
  margin: MARGIN, dragmode: "zoom", hovermode: "closest", showlegend: false,
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
  font: { family: "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, DejaVu Sans, sans-serif", size: 11, color: "--muted" },
  hoverlabel: { bgcolor: "--card", bordercolor: "--line", align: "left", font: { color: "--ink", size: 12 } },
  template: { layout: { xaxis: AXIS, yaxis: { ...AXIS, ticks: "", fixedrange: true, nticks: 4, tickfont: { size: 10 } } } },
};
const KINDS = { f4: Float32Array, f8: Float64Array, u1: Uint8Array };
const SECOND = 1000;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].map((step) => step * SECOND);
const byId = (id) => document.getElementById(id);

// An array of `page.py`; a table as its rows, in which 255 stands for what was not sampled.
function revived(_, value) {
  if (!value?.bdata) return value;
  const { rows, low, step } = value;
  const all = new KINDS[value.dtype](Uint8Array.from(atob(value.bdata), (letter) => letter.charCodeAt(0)).buffer);
  if (!rows) return all;
  const columns = all.length / rows;
  return Array.from({ length: rows }, (_row, row) => Float32Array.from(all.subarray(row * columns, (row + 1) * columns), (code) => (code === 255 ? NaN : low + code * step)));
}

async function read() {
  const bytes = Uint8Array.from(atob(byId("page-data").textContent), (letter) => letter.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  return JSON.parse(text, revived);
}

// The same with the colours of the page's style in place of their names.
function coloured(value, style = getComputedStyle(document.documentElement)) {
  if (typeof value === "string") return value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
  if (Array.isArray(value)) return value.map((one) => coloured(one, style));
  if (value === null || typeof value !== "object" || ArrayBuffer.isView(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, coloured(one, style)]));
}

// A line and its band; runs reach to the edges of their bins, and nothing is drawn between runs.
function banded(trace) {
  const { y, low, high, step, x: places, x0, dx, ...rest } = trace;
  const half = places ? 0 : dx / 2;
  const at = (i) => (places ? places[i] : x0 + i * dx);
  const line = { x: [], y: [], customdata: [] };
  const band = { x: [], y: [] };
  for (let end, begin = 0; begin < y.length; begin = end + 1) {
    for (end = begin; end < y.length && Number.isFinite(y[end]); end++);
    if (end === begin) continue;
    const run = Array.from({ length: end - begin }, (_, i) => begin + i);
    const points = [begin, ...run, end - 1];
    const xs = [at(begin) - half, ...run.map(at), at(end - 1) + half];
    line.x.push(...xs, null);
    line.y.push(...points.map((i) => y[i]), null);
    line.customdata.push(...points.map((i) => [low[i], high[i], step?.[i]]), null);
    band.x.push(...xs, ...xs.toReversed(), null);
    band.y.push(...points.map((i) => high[i]), ...points.toReversed().map((i) => low[i]), null);
  }
  return [
    { type: "scatter", mode: "lines", ...band, line: { width: 0 }, fill: "toself", fillcolor: trace.line.color, opacity: 0.22, hoverinfo: "skip" },
    { ...rest, ...line },
  ];
}

const clock = (at, seconds) => new Date(at).toISOString().slice(11, seconds ? 19 : 16);
const day = (at) => new Date(at).toLocaleString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });

function duration(milliseconds) {
  const whole = Math.round(milliseconds / SECOND);
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  if (h) return `${h}:${String(m).padStart(2, "0")} h`;
  return m ? `${m}${s ? `:${String(s).padStart(2, "0")}` : ""} min` : `${s} s`;
}

// Round times on the clock of the run, and below them the time since its start.
function ticks(page, [from, to], most) {
  const step = STEPS.find((one) => one >= (to - from) / most) ?? Math.ceil((to - from) / most / 86400e3) * 86400e3;
  const tickvals = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) tickvals.push(at);
  const ticktext = tickvals.map((at, n) => {
    const date = day(from) !== day(to) && (!n || day(at) !== day(tickvals[n - 1])) ? `${day(at)} ` : "";
    const since = at - page.begin;
    return `${date}${clock(at, step < 60 * SECOND)}<br>${since < 0 ? "−" : "+"}${duration(Math.abs(since))}`;
  });
  return { tickmode: "array", tickvals, ticktext };
}

// The values of a curve in a stretch of time, with some air; a rate or a share is read against zero.
function reached(plot, [from, to]) {
  const inside = plot.data.flatMap(({ x, y, low = y, high = y }) => Array.from(x, (at, i) => (at >= from && at <= to ? [low[i], high[i]] : [])).flat());
  const seen = inside.filter(Number.isFinite);
  if (!seen.length) return [0, 1];
  const [least, most] = [Math.min(...seen, ...(plot.layout.yaxis.rangemode === "tozero" ? [0] : [])), Math.max(...seen)];
  const air = 0.06 * (most - least || Math.abs(most) || 1);
  return [least === 0 ? 0 : least - air, most + air];
}

class View {
  constructor(page) {
    this.page = page;
    this.range = page.whole;
    this.mark = null;
    this.lines = false;
    this.width = null; // of paper
    this.plots = page.figures.flatMap((plot) => {
      const figure = document.querySelector(`figure[data-plot="${plot.id}"]`);
      return figure ? [{ ...plot, figure, area: figure.querySelector(".area"), timed: plot.layout.xaxis.type === "date" }] : [];
    });
    this.seen = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        const plot = this.plots.find((one) => one.figure === target);
        plot.visible = isIntersecting;
        if (isIntersecting) this.draw(plot);
      }
    }, { rootMargin: "200px" });
    for (const plot of this.plots) this.seen.observe(plot.figure);
  }

  // Draws what is on the screen now, and the rest when it comes there.
  changed() {
    for (const plot of this.plots) delete plot.figure.dataset.drawn;
    for (const plot of this.plots) if (plot.visible) this.draw(plot);
    if (!byId("shown")) return;
    const [from, to] = this.range;
    const zoomed = String(this.range) !== String(this.page.whole);
    const dated = (at) => (day(from) === day(to) ? "" : `${day(at)}, `) + clock(at, to - from < 3600e3);
    byId("reset").disabled = !zoomed && !this.mark;
    byId("shown").textContent = zoomed ? `${dated(from)} to ${dated(to)}: ${duration(to - from)}` : `the whole run, ${duration(to - from)}`;
    for (const button of document.querySelectorAll("[data-mark]"))
      button.setAttribute("aria-pressed", String(this.mark === this.page.marks[Number(button.dataset.mark)]));
  }

  show(from, to) {
    const [begin, end] = this.page.whole;
    const length = Math.min(Math.max(Math.abs(to - from), 2 * this.page.width), end - begin);
    const first = Math.min(Math.max((from + to - length) / 2, begin), end - length);
    if (Number.isFinite(first)) this.range = [first, first + length];
    this.changed();
  }

  scale(factor, move = 0) {
    const [from, to] = this.range;
    const [middle, half] = [(from + to) / 2 + (to - from) * move, ((to - from) / 2) * factor];
    this.show(middle - half, middle + half);
  }

  reset() {
    this.mark = null;
    this.range = this.page.whole;
    this.changed();
  }

  // The layout of a plot as it is to be seen now.
  layout(plot, asLines) {
    const { layout } = plot;
    const found = { ...BASE, ...layout, shapes: [...layout.shapes ?? []] };
    if (this.width) found.width = this.width;
    if (!plot.timed) return found;
    const width = ((this.width ?? plot.area.clientWidth) - MARGIN.l - MARGIN.r) * layout.xaxis.domain[1];
    found.xaxis = { ...layout.xaxis, range: this.range, ...ticks(this.page, this.range, Math.max(2, Math.floor(width / 95))) };
    if (!layout.yaxis.range) found.yaxis = { ...layout.yaxis, range: reached(plot, this.range) };
    if (asLines) {
      found.xaxis.anchor = "y";
      found.yaxis = { ...layout.yaxis, domain: [0, 1] };
      Object.assign(found, { showlegend: true, legend: { x: layout.xaxis.domain[1] + 0.01, y: 1, font: { size: 9 } } });
      delete found.yaxis2;
      delete found.xaxis2;
      found.shapes = found.shapes.filter((shape) => shape.yref === "y domain");
    }
    const { windows, rows } = this.mark ?? { windows: [], rows: {} };
    const line = { width: 2, color: "--error" };
    for (const [x0, x1] of windows) found.shapes.push({ type: "rect", xref: "x", x0, x1, yref: "y domain", y0: 0, y1: 1, line, fillcolor: "--error", opacity: 0.25, layer: "below" });
    const marked = found.yaxis2 ? (rows[plot.of] ?? []) : [];
    for (const [x0, x1] of windows.length ? windows : [this.page.whole])
      for (const [first, last] of marked) found.shapes.push({ type: "rect", xref: "x", x0, x1, yref: "y2", y0: first - 0.5, y1: last + 0.5, line });
    // A few of very many rows are to be seen from near.
    if (!marked.length) return found;
    const [first, last] = [Math.min(...marked.flat()) - 8.5, Math.max(...marked.flat()) + 8.5];
    const [bottom, top] = layout.yaxis2.range;
    if (last - first < (bottom - top) / 4) found.yaxis2 = { ...layout.yaxis2, range: [Math.min(last, bottom), Math.max(first, top)] };
    return found;
  }

  draw(plot) {
    const { figure, area } = plot;
    if (figure.dataset.drawn || !area.clientWidth) return;
    const heat = plot.data.find((trace) => trace.type === "heatmap");
    const asLines = this.lines && plot.timed && heat && heat.z.length <= LINES_MOST;
    const rows = () => heat.z.map((y, row) => ({
      type: "scatter", mode: "lines", x0: heat.x0, dx: heat.dx, y, name: heat.y[row], hovertemplate: heat.hovertemplate.replace("%{y}", heat.y[row]).replace("%{z", "%{y"),
      line: { width: 1.3, color: `--${["one", "two", "three", "four", "five", "six", "seven", "eight"][row % 8]}`, dash: row < 8 ? "solid" : "dash" },
    }));
    const data = asLines ? rows() : plot.data.flatMap((trace) => (trace.low ? banded(trace) : [trace]));
    const config = { displayModeBar: false, doubleClick: false, showTips: false, responsive: true };
    figure.classList.toggle("lined", Boolean(asLines));
    Plotly.react(area, coloured(data), coloured(this.layout(plot, asLines)), config);
    figure.dataset.drawn = this.range.map((at) => ((at - this.page.begin) / SECOND).toFixed(1)).join(",") || "whole";
    if (plot.drawn || !plot.timed) return;
    plot.drawn = true;
    area.on("plotly_relayout", (change) => {
      const ends = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (ends[0] !== undefined) this.show(...ends.map((end) => (typeof end === "number" ? end : Date.parse(`${end.replace(" ", "T")}Z`))));
    });
    area.on("plotly_doubleclick", () => this.reset());
  }
}

// A finding's button marks its time and its rows in all plots, and a second click takes that away.
function marked(view, button) {
  const mark = view.page.marks[Number(button.dataset.mark)];
  if (view.mark === mark) { view.reset(); return; }
  view.mark = mark;
  const times = mark.windows.flat();
  const [from, to] = times.length ? [Math.min(...times), Math.max(...times)] : view.page.whole;
  const air = times.length ? Math.max((to - from) * 0.25, view.page.width * 10) : 0;
  view.show(from - air, to + air);
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  byId(button.dataset.section)?.scrollIntoView({ behavior: calm ? "auto" : "smooth" });
}

function controls(view) {
  const actions = {
    earlier: () => view.scale(1, -0.5), later: () => view.scale(1, 0.5),
    closer: () => view.scale(0.5), farther: () => view.scale(2), reset: () => view.reset(),
    lines: () => { view.lines = !view.lines; byId("lines").setAttribute("aria-pressed", String(view.lines)); view.changed(); },
  };
  for (const [id, action] of Object.entries(actions)) byId(id)?.addEventListener("click", action);
  for (const button of document.querySelectorAll("[data-mark]")) button.addEventListener("click", () => marked(view, button));
  // What is unfolded has had no width until now.
  document.addEventListener("toggle", () => { for (const plot of view.plots) if (plot.visible) view.draw(plot); }, true);
}

function theme(view) {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const follow = () => { byId("theme").textContent = isDark() ? "Light" : "Dark"; view.changed(); };
  byId("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; follow(); });
  dark.addEventListener("change", follow);
  follow();
  // Paper is light, narrow, and has no place for "when it comes on the screen".
  let before = "";
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    view.width = 690;
    for (const plot of view.plots) { delete plot.figure.dataset.drawn; view.draw(plot); }
  });
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    view.width = null;
    view.changed();
  });
}

async function start() {
  const view = new View(await read());
  const asked = /^#zoom=(-?[\d.]+),(-?[\d.]+)$/.exec(location.hash);
  controls(view);
  theme(view);
  if (asked) view.show(...asked.slice(1).map((seconds) => view.page.begin + Number(seconds) * SECOND));
  document.documentElement.dataset.ready = String(view.plots.length);
}

start().catch((error) => {
  byId("trouble").hidden = false;
  byId("trouble").textContent = `The plots could not be drawn (${error?.message ?? error}). Everything in words and tables is here; a browser of 2023 or later shows the plots too.`;
});
