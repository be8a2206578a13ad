// Each plot of the page as Plotly's data and layout; pure but for the colours read from the style.

const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
const SCALE = VIRIDIS.map((colour, at) => [at / (VIRIDIS.length - 1), colour]);
const MARGIN = { left: 118, right: 14, top: 8, bottom: 38 };
const STRIP = 96; // heights in pixels
const GAP = 10;
const FEW_ROWS = 32; // all of them are always shown
const LINES_MOST = 16; // rows that may be drawn as lines

function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    ink: read("--ink"), muted: read("--muted"), line: read("--line"), blank: read("--blank"), card: read("--card"),
    alarm: read("--error"), series: ["--one", "--two", "--three", "--four", "--five", "--six", "--seven", "--eight"].map(read),
  };
}

function translucent(colour, share) {
  const value = Number.parseInt(colour.slice(1), 16);
  return `rgba(${value >> 16},${(value >> 8) & 255},${value & 255},${share})`;
}

// Stretches of x in which values are there, as [first, past the last].
function runs(values) {
  const found = [];
  let begin = -1;
  for (let at = 0; at <= values.length; at++) {
    const there = at < values.length && Number.isFinite(values[at]);
    if (there && begin < 0) begin = at;
    if (!there && begin >= 0) { found.push([begin, at]); begin = -1; }
  }
  return found;
}

// A line and its band; runs reach to the edges of their bins, and nothing is drawn between runs.
function bandTraces(series, xOf, half, colour, options) {
  const line = { x: [], y: [], keys: [] };
  const band = { x: [], y: [] };
  for (const [begin, end] of runs(series.mean)) {
    const at = Array.from({ length: end - begin }, (_, i) => begin + i);
    const places = half > 0 ? [begin, ...at, end - 1] : at;
    const xs = places.map((i, n) => xOf(i) + (half > 0 && n === 0 ? -half : half > 0 && n === places.length - 1 ? half : 0));
    line.x.push(...xs, null); line.y.push(...places.map((i) => series.mean[i]), null); line.keys.push(...places, null);
    band.x.push(...xs, ...xs.slice().reverse(), null);
    band.y.push(...places.map((i) => series.high[i]), ...places.slice().reverse().map((i) => series.low[i]), null);
  }
  const shared = { type: "scatter", xaxis: "x", yaxis: "y", showlegend: false, connectgaps: false };
  return [
    { ...shared, x: band.x, y: band.y, mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: translucent(colour, 0.22), hoverinfo: "skip" },
    { ...shared, x: line.x, y: line.y, customdata: line.keys, mode: "lines", line: { width: 1.6, color: colour }, hoverinfo: "none", meta: options.meta },
  ];
}

function baseLayout(colours, height, width) {
  return {
    autosize: false, width, height, dragmode: "zoom", hovermode: "closest",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, shapes: [], annotations: [],
    font: { family: "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, DejaVu Sans, sans-serif", size: 11, color: colours.muted },
    margin: { l: MARGIN.left, r: MARGIN.right, t: MARGIN.top, b: MARGIN.bottom },
  };
}

function timeAxis(page, view, colours, width, anchor) {
  const [from, to] = view.range;
  const ticks = timeTicks(page, from, to, Math.max(2, Math.floor((width - MARGIN.left) / 110)));
  return {
    range: [from, to], tickmode: "array", tickvals: ticks.values, ticktext: ticks.texts, anchor, domain: [0, timeShare(width)],
    showgrid: true, gridcolor: colours.line, zeroline: false, ticks: "outside", ticklen: 3, tickcolor: colours.line,
  };
}

// The part of the width that time has; the rest is for the average of each row.
function timeShare(width) {
  return width < 640 ? 1 : 0.87;
}

function valueAxis(colours, range, domain) {
  return { range, domain, fixedrange: true, showgrid: true, gridcolor: colours.line, zeroline: false, nticks: 4, tickfont: { size: 10 } };
}

function blankShapes(page, colours, where) {
  return page.blank.map(([from, to]) => ({
    type: "rect", layer: "below", xref: "x", x0: from, x1: to, yref: `${where} domain`, y0: 0, y1: 1, line: { width: 0 }, fillcolor: colours.blank,
  }));
}

function markShapes(mark, colours) {
  return (mark?.windows ?? []).map(([from, to]) => ({
    type: "rect", layer: "below", xref: "x", x0: from, x1: to, yref: "y domain", y0: 0, y1: 1,
    line: { width: 1, color: colours.alarm }, fillcolor: translucent(colours.alarm, 0.12),
  }));
}

// Rows of a heat map that a finding is about: neighbours as one rectangle.
function markedRows(page, plot, mark) {
  if (!mark) return [];
  const own = { gpu: mark.gpus, host: mark.nodes }[plot.rows] ?? [];
  const nodes = new Set(mark.nodes);
  const gpuNodes = new Set(mark.gpus.map((gpu) => page.nodeOf.gpu[gpu]));
  const rows = own.length ? own.slice() : page.nodeOf[plot.rows].flatMap((node, row) => (nodes.has(node) || (plot.rows === "host" && gpuNodes.has(node)) ? [row] : []));
  rows.sort((a, b) => a - b);
  const found = [];
  for (const row of rows) {
    const last = found[found.length - 1];
    if (last && row === last[1] + 1) last[1] = row; else found.push([row, row]);
  }
  return found;
}

function rowTicks(page, plot, height, [first, last] = [-0.5, Infinity]) {
  const names = page.names[plot.rows];
  const count = Math.min(last, names.length) - Math.max(first, 0);
  const step = Math.max(1, Math.ceil((count * 13) / height));
  const places = names.map((_, row) => row).filter((row) => row > first && row < last && row % step === 0);
  return { tickvals: places, ticktext: places.map((row) => label(names[row], 17)) };
}

function heatHeight(rows) {
  return Math.round(Math.min(400, Math.max(44, rows * (rows <= 8 ? 22 : 14))));
}

function rowsFigure(page, plot, view, width) {
  const colours = palette();
  const heat = plot.heat;
  const asLines = view.lines && heat && heat.rows <= LINES_MOST;
  const rows = heat && !asLines ? heatHeight(heat.rows) : 0;
  const stripHeight = asLines ? STRIP * 1.8 : STRIP;
  const inner = stripHeight + (rows ? GAP + rows : 0);
  const layout = baseLayout(colours, inner + MARGIN.top + MARGIN.bottom, width);
  const stripDomain = rows ? [(rows + GAP) / inner, 1] : [0, 1];
  const ceiling = asLines ? heat.ceiling : plot.ceiling;
  const spread = ceiling - plot.floor;
  const range = [plot.floor - (plot.floor < 0 ? spread * 0.04 : 0), ceiling + spread * 0.04];
  layout.xaxis = timeAxis(page, view, colours, width, rows ? "y2" : "y");
  layout.yaxis = { ...valueAxis(colours, range, stripDomain), anchor: "x" };
  layout.shapes.push(...blankShapes(page, colours, "y"), ...markShapes(view.mark, colours));
  const data = [];
  if (asLines) {
    data.push(...lineTraces(page, plot, colours));
    if (timeShare(width) < 1) layout.annotations.push(...lineNames(page, plot, colours));
  }
  else plot.series.forEach((series, at) => data.push(...bandTraces(series, (i) => (i + 0.5) * plot.width, plot.width / 2, colours.series[at], { meta: series.name || "mean" })));
  if (rows) addHeat(page, plot, view, width, colours, layout, data, [0, rows / inner]);
  return { data, layout };
}

function lineTraces(page, plot, colours) {
  const dashes = ["solid", "dash"];
  return plot.heat.table.map((values, row) => {
    const series = { mean: values, low: values, high: values };
    const [, line] = bandTraces(series, (i) => (i + 0.5) * plot.heat.width, plot.heat.width / 2, colours.series[row % 8], { meta: page.names[plot.rows][row] });
    line.line = { ...line.line, width: 1.3, dash: dashes[Math.floor(row / 8)] };
    return line;
  });
}

// Beside the lines their names, in their colours.
function lineNames(page, plot, colours) {
  return page.names[plot.rows].map((name, row) => ({
    text: label(name, 17), font: { size: 9, color: colours.series[row % 8] }, showarrow: false,
    xref: "paper", x: timeShare(1e4) + 0.01, xanchor: "left", yref: "paper", y: 1 - (row + 0.5) / LINES_MOST, yanchor: "middle",
  }));
}

function addHeat(page, plot, view, width, colours, layout, data, domain) {
  const { heat } = plot;
  const height = heatHeight(heat.rows);
  const shown = view.rows[plot.rows] ?? [-0.5, heat.rows - 0.5];
  layout.yaxis2 = {
    domain, range: [shown[1], shown[0]], fixedrange: heat.rows <= FEW_ROWS, anchor: "x", showgrid: false, zeroline: false, ...rowTicks(page, plot, height, shown), tickfont: { size: 10 },
  };
  data.push({
    type: "heatmap", z: heat.table, x0: heat.width / 2, dx: heat.width, y0: 0, dy: 1, xaxis: "x", yaxis: "y2", zsmooth: false,
    colorscale: SCALE, zmin: plot.floor, zmax: heat.ceiling, showscale: false, hoverinfo: "none",
  });
  // Behind the cells: what was not sampled is grey.
  layout.shapes.push({ type: "rect", layer: "below", xref: "x domain", x0: 0, x1: 1, yref: "y2 domain", y0: 0, y1: 1, line: { width: 0 }, fillcolor: colours.blank });
  // Lines between a few rows, or between the nodes of some more.
  const nodeOf = page.nodeOf[plot.rows];
  for (let row = 1; row < heat.rows; row++)
    if (shown[1] - shown[0] <= 32 || (page.nodes.length <= 32 && nodeOf[row] !== nodeOf[row - 1]))
      layout.shapes.push({ type: "line", xref: "x domain", x0: 0, x1: 1, yref: "y2", y0: row - 0.5, y1: row - 0.5, line: { width: 1, color: "rgba(255,255,255,0.45)" } });
  for (const [first, last] of markedRows(page, plot, view.mark)) {
    const windows = view.mark.windows.length ? view.mark.windows : [[0, page.end - page.begin]];
    for (const [from, to] of windows)
      layout.shapes.push({ type: "rect", xref: "x", x0: from, x1: to, yref: "y2", y0: first - 0.5, y1: last + 0.5, line: { width: 2, color: colours.alarm }, fillcolor: "rgba(0,0,0,0)" });
  }
  if (timeShare(width) === 1) return;
  layout.xaxis2 = {
    domain: [timeShare(width) + 0.012, 1], anchor: "y2", range: [Math.min(0, plot.floor), heat.ceiling * 1.02], fixedrange: true, showgrid: false, zeroline: false,
    tickvals: [Math.min(0, plot.floor), heat.ceiling], ticktext: [number(Math.min(0, plot.floor)), number(heat.ceiling)], tickfont: { size: 9 },
  };
  const average = Array.from(heat.average);
  const places = average.map((_, row) => row);
  const fill = translucent(colours.series[0], 0.55);
  data.push(shown[1] - shown[0] <= 128
    ? { type: "bar", orientation: "h", x: average, y: places, xaxis: "x2", yaxis: "y2", marker: { color: fill }, width: 0.82, hoverinfo: "none", meta: "average" }
    : { type: "scatter", x: average, y: places, xaxis: "x2", yaxis: "y2", mode: "lines", fill: "tozerox", line: { width: 0.6, color: fill, shape: "vh" }, fillcolor: fill, hoverinfo: "none", meta: "average" });
}

function curveFigure(page, plot, view, width) {
  const colours = palette();
  const layout = baseLayout(colours, STRIP * 1.4 + MARGIN.top + MARGIN.bottom, width);
  layout.xaxis = timeAxis(page, view, colours, width, "y");
  const { low, mean, high } = plot.series[0];
  const inside = [];
  for (let at = 0; at < mean.length; at++)
    if (plot.time[at] >= view.range[0] && plot.time[at] <= view.range[1]) for (const value of [low[at], high[at]]) if (Number.isFinite(value)) inside.push(value);
  for (const [when, value] of plot.marks) if (when >= view.range[0] && when <= view.range[1] && Number.isFinite(value)) inside.push(value);
  let least = inside.reduce((a, b) => Math.min(a, b), Infinity);
  let most = inside.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!(least <= most)) [least, most] = [0, 1];
  // A rate or a share is read against zero, a loss against itself.
  if (plot.id !== "loss" && !plot.id.startsWith("extra") && least > 0) least = 0;
  const spread = most - least || Math.abs(most) || 1;
  layout.yaxis = { ...valueAxis(colours, [least - (least === 0 ? 0 : spread * 0.06), most + spread * 0.06], [0, 1]), anchor: "x" };
  layout.shapes.push(...markShapes(view.mark, colours));
  const data = bandTraces(plot.series[0], (i) => plot.time[i], 0, colours.series[0], { meta: plot.title });
  if (plot.marks.length)
    data.push({ type: "scatter", mode: "markers", x: plot.marks.map((mark) => mark[0]), y: plot.marks.map((mark) => mark[1]), marker: { size: 6, symbol: "diamond", color: colours.series[1] }, hoverinfo: "none", meta: plot.marksName });
  return { data, layout };
}

function coresFigure(page, plot, view, width) {
  const colours = palette();
  const height = heatHeight(plot.rows);
  const layout = baseLayout(colours, height + MARGIN.top + MARGIN.bottom, width);
  layout.xaxis = { range: [-0.5, plot.columns - 0.5], fixedrange: true, domain: [0, timeShare(width)], showgrid: false, zeroline: false, title: { text: "core", font: { size: 10 }, standoff: 4 }, tick0: 0, dtick: Math.max(1, Math.ceil(plot.columns / 12)) };
  layout.yaxis = { range: [plot.rows - 0.5, -0.5], fixedrange: true, showgrid: false, zeroline: false, ...rowTicks(page, { rows: "host" }, height), tickfont: { size: 10 } };
  layout.shapes.push({ type: "rect", layer: "below", xref: "x domain", x0: 0, x1: 1, yref: "y domain", y0: 0, y1: 1, line: { width: 0 }, fillcolor: colours.blank });
  return { data: [{ type: "heatmap", z: plot.table, x0: 0, dx: 1, y0: 0, dy: 1, colorscale: SCALE, zmin: 0, zmax: 100, showscale: false, hoverinfo: "none" }], layout };
}

function timelineFigure(page, plot, view, width) {
  const colours = palette();
  const lanes = plot.lanes;
  const inner = Math.max(40, lanes.length * 26);
  const layout = baseLayout(colours, inner + MARGIN.top + MARGIN.bottom, width);
  layout.xaxis = timeAxis(page, view, colours, width, "y");
  layout.yaxis = { range: [lanes.length - 0.5, -0.5], fixedrange: true, showgrid: false, zeroline: false, tickvals: lanes.map((_, row) => row), ticktext: lanes.map((lane) => label(lane.name, 17)) };
  layout.shapes.push(...markShapes(view.mark, colours));
  const colour = { COMPLETED: colours.series[2], RUNNING: colours.series[0], UNKNOWN: colours.muted, FAILED: colours.alarm, gap: colours.muted, checkpoint: colours.series[0], validation: colours.series[1], note: colours.series[4], resume: colours.series[2], end: colours.muted };
  const data = [];
  lanes.forEach((lane, row) => {
    const long = lane.bars.filter((bar) => bar[1] > 0);
    const short = lane.bars.filter((bar) => !(bar[1] > 0));
    if (long.length) data.push({ type: "bar", orientation: "h", base: long.map((bar) => bar[0]), x: long.map((bar) => bar[1]), y: long.map(() => row), width: 0.56, marker: { color: long.map((bar) => colour[bar[3]]), line: { width: 0 } }, hoverinfo: "none", customdata: long, meta: lane.name });
    // Drawn as a point as well, or a checkpoint of 3 s would not be seen in a day.
    const points = [...short, ...(lane.name === "run" ? [] : long)];
    if (points.length) data.push({ type: "scatter", mode: "markers", x: points.map((bar) => bar[0]), y: points.map(() => row), marker: { size: 6, symbol: "diamond", color: points.map((bar) => colour[bar[3]]) }, hoverinfo: "none", customdata: points, meta: lane.name });
  });
  layout.barmode = "overlay";
  return { data, layout };
}

const FIGURES = { rows: rowsFigure, curve: curveFigure, cores: coresFigure, timeline: timelineFigure };

// The button that turns a page light or dark; `changed` draws it anew.
function theme(changed) {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const follow = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
    changed();
  };
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; follow(); });
  dark.addEventListener("change", follow);
  follow();
}
