// What the reader does: zoom (all plots together), light and dark, lines, findings, hover.

class View {
  constructor(page) {
    this.page = page;
    this.whole = [Math.min(0, ...page.plots.flatMap((plot) => (plot.kind === "timeline" ? plot.lanes.flatMap((lane) => lane.bars.map((bar) => bar[0])) : []))), page.end - page.begin];
    if (!(this.whole[1] > this.whole[0])) this.whole[1] = this.whole[0] + 1;
    this.range = this.whole.slice();
    this.rows = {}; // stretch of rows shown, by what has a row each; none: all
    this.lines = false;
    this.mark = null;
    this.plots = [];
  }

  get changes() {
    return this.zoomed || this.mark !== null || Object.keys(this.rows).length > 0;
  }

  get zoomed() {
    return this.range[0] > this.whole[0] || this.range[1] < this.whole[1];
  }

  show(from, to) {
    const least = Math.min(this.page.width * 2, this.whole[1] - this.whole[0]);
    let [begin, end] = [Math.min(from, to), Math.max(from, to)];
    if (!Number.isFinite(begin) || !Number.isFinite(end)) return;
    if (end - begin < least) [begin, end] = [(begin + end - least) / 2, (begin + end + least) / 2];
    const length = Math.min(end - begin, this.whole[1] - this.whole[0]);
    begin = Math.min(Math.max(begin, this.whole[0]), this.whole[1] - length);
    this.range = [begin, begin + length];
    this.changed();
  }

  // Takes effect with the next `show` or `changed`.
  showRows(kind, first, last) {
    const count = this.page.names[kind].length;
    if (count <= FEW_ROWS) return;
    const [from, to] = [Math.max(-0.5, Math.floor(Math.min(first, last) + 0.5) - 0.5), Math.min(count - 0.5, Math.ceil(Math.max(first, last) + 0.5) - 0.5)];
    if (to - from < count && to > from) this.rows[kind] = [from, to];
  }

  scale(factor) {
    const [from, to] = this.range;
    const half = ((to - from) * factor) / 2;
    this.show((from + to) / 2 - half, (from + to) / 2 + half);
  }

  move(share) {
    const [from, to] = this.range;
    this.show(from + (to - from) * share, to + (to - from) * share);
  }

  reset() {
    this.mark = null;
    this.rows = {};
    this.range = this.whole.slice();
    this.changed();
  }

  // Draws what is on the screen now, and the rest when it comes there.
  changed() {
    for (const plot of this.plots) plot.spoil();
    for (const plot of this.plots) if (plot.visible) plot.draw();
    this.onchange?.();
  }
}

class PlotView {
  constructor(view, plot, figure) {
    this.view = view;
    this.plot = plot;
    this.figure = figure;
    this.area = figure.querySelector(".area");
    this.visible = false;
    this.stale = true;
    this.drawn = false;
    this.width = null; // set for paper
  }

  // What is drawn is no longer what should be shown.
  spoil() {
    this.stale = true;
    delete this.figure.dataset.drawn;
  }

  draw() {
    if (!this.stale || !this.area.clientWidth) return;
    this.stale = false;
    const width = this.width ?? this.area.clientWidth;
    const { data, layout } = FIGURES[this.plot.kind](this.view.page, this.plot, this.view, width);
    Plotly.react(this.area, data, layout, { displayModeBar: false, doubleClick: false, showTips: false, responsive: false });
    this.figure.classList.toggle("lined", Boolean(this.view.lines && this.plot.heat && this.plot.heat.rows <= LINES_MOST));
    this.figure.dataset.drawn = this.view.range.map((value) => value.toFixed(1)).join(",");
    if (this.drawn) return;
    this.drawn = true;
    this.area.on("plotly_relayout", (change) => {
      if (this.plot.kind === "cores") return;
      const [first, last] = [change["yaxis2.range[0]"], change["yaxis2.range[1]"]];
      if (first !== undefined && last !== undefined) this.view.showRows(this.plot.rows, Number(first), Number(last));
      const [from, to] = [change["xaxis.range[0]"] ?? this.view.range[0], change["xaxis.range[1]"] ?? this.view.range[1]];
      this.view.show(Number(from), Number(to));
    });
    this.area.on("plotly_doubleclick", () => this.view.reset());
    this.area.on("plotly_hover", (event) => hover(this, event));
    this.area.on("plotly_unhover", () => hideHover());
  }
}

// Hover: texts go in as text, so that a name can be anything.

function hover(owner, event) {
  const point = event.points[0];
  const { page } = owner.view;
  const plot = owner.plot;
  const box = document.getElementById("hover");
  box.replaceChildren();
  const say = (text, kind) => {
    const line = document.createElement("div");
    line.textContent = text;
    if (kind) line.className = kind;
    box.append(line);
  };
  const unit = plot.unit ? ` ${plot.unit}` : "";
  const when = (seconds) => `${clock(page, seconds)} · ${duration(seconds)} after the start`;
  if (plot.kind === "timeline") {
    const [from, seconds, words] = point.customdata;
    say(point.data.meta, "name");
    say(words);
    say(when(from) + (seconds > 0 ? ` · took ${duration(seconds)}` : ""), "when");
  } else if (plot.kind === "cores") {
    say(`core ${point.x} of ${page.names.host[point.y]}`, "name");
    say(`${number(point.z)}${unit} on average`);
  } else if (point.data.type === "heatmap") {
    say(page.names[plot.rows][point.y], "name");
    say(`${number(point.z)}${unit}, mean of ${duration(plot.heat.width)}`);
    say(when(point.x), "when");
  } else if (point.data.meta === "average") {
    say(page.names[plot.rows][Math.round(point.y)], "name");
    say(`${number(point.x)}${unit} on average`);
  } else if (point.data.mode === "markers") {
    say(point.data.meta, "name");
    say(`${number(point.y)}${unit}`);
    say(when(point.x), "when");
  } else {
    const at = point.customdata;
    say(point.data.meta, "name");
    const series = plot.series.find((one) => one.name === point.data.meta) ?? plot.series[0];
    const single = owner.view.lines && plot.heat && plot.heat.rows <= LINES_MOST;
    say(`${number(point.y)}${unit}` + (single ? "" : `  (${number(series.low[at])} to ${number(series.high[at])})`));
    say(when(point.x) + (plot.step ? ` · step ${number(plot.step[at])}` : ""), "when");
  }
  box.hidden = false;
  const { clientX, clientY } = event.event;
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(clientX + 14, innerWidth - width - 8))}px`;
  box.style.top = `${clientY + height + 24 > innerHeight ? clientY - height - 12 : clientY + 16}px`;
}

function hideHover() {
  document.getElementById("hover").hidden = true;
}
