// The plots of a series of runs; what fails is said on the page, whose table is there without them.

function seriesFigure(plot, width) {
  const colours = palette();
  const layout = baseLayout(colours, 300, width);
  layout.margin = { l: 58, r: 16, t: 8, b: 40 };
  const axis = { showgrid: true, gridcolor: colours.line, zeroline: false, ticks: "outside", ticklen: 3, tickcolor: colours.line };
  const counts = [...new Set(plot.series.flatMap((one) => (one.points ? one.x : [])))];
  layout.xaxis = { ...axis, title: { text: label(plot.x, 60), font: { size: 11 }, standoff: 6 } };
  layout.yaxis = { ...axis, title: { text: label(plot.y, 60), font: { size: 11 }, standoff: 6 } };
  // Numbers of GPUs double: on a logarithmic axis each run has its place, and ideal is a line.
  if (plot.log || plot.log_x) Object.assign(layout.xaxis, { type: "log", tickvals: counts, ticktext: counts.map(String) });
  if (plot.log) {
    const highest = Math.max(...plot.series.flatMap((one) => one.y));
    const ticks = [0.25, 0.5, ...Array.from({ length: 14 }, (_, n) => 2 ** n)].filter((tick) => tick <= highest * 1.1);
    Object.assign(layout.yaxis, { type: "log", tickvals: ticks, ticktext: ticks.map(String) });
  }
  if (plot.zero) layout.yaxis.rangemode = "tozero";
  const data = plot.series.map((one, at) => ({
    type: "scatter", mode: one.points ? "lines+markers" : "lines", x: one.x, y: one.y, connectgaps: Boolean(one.points), hoverinfo: "none", meta: one.name,
    line: { width: one.quiet ? 1.2 : 1.8, dash: one.dash ?? ["solid", "dash"][Math.floor(at / 8) % 2], color: one.quiet ? colours.muted : colours.series[(at - (plot.series[0].quiet ? 1 : 0)) % 8] },
    marker: { size: 8 },
  }));
  return { data, layout };
}

// The names of the lines, in their colours.
function legend(figure, data) {
  const list = figure.querySelector(".legend");
  list.replaceChildren(...data.map((one) => {
    const item = document.createElement("span");
    const swatch = document.createElement("i");
    swatch.style.background = one.line.color;
    item.append(swatch, one.meta);
    return item;
  }));
}

function tell(plot, event) {
  const point = event.points[0];
  const box = document.getElementById("hover");
  const lines = [point.data.meta, `${number(point.y)} ${plot.y}`, `${plot.x}: ${number(point.x)}`].map((text, at) => {
    const line = document.createElement("div");
    line.textContent = text;
    line.className = ["name", "", "when"][at];
    return line;
  });
  box.replaceChildren(...lines);
  box.hidden = false;
  box.style.left = `${Math.min(event.event.clientX + 14, innerWidth - box.offsetWidth - 8)}px`;
  box.style.top = `${event.event.clientY + 16}px`;
}

function drawAll(plots, width) {
  for (const plot of plots) {
    const figure = document.querySelector(`figure[data-plot="${plot.id}"]`);
    const area = figure.querySelector(".area");
    const { data, layout } = seriesFigure(plot, width ?? area.clientWidth);
    Plotly.react(area, data, layout, { displayModeBar: false, showTips: false });
    if (!figure.dataset.drawn) {
      area.on("plotly_hover", (event) => tell(plot, event));
      area.on("plotly_unhover", () => { document.getElementById("hover").hidden = true; });
    }
    legend(figure, data);
    figure.dataset.drawn = "1";
  }
}

function begin() {
  const { plots } = JSON.parse(document.getElementById("page-data").textContent);
  const root = document.documentElement;
  theme(() => drawAll(plots));
  let timer = 0;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(() => drawAll(plots), 120); });
  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; drawAll(plots, 690); });
  addEventListener("afterprint", () => { if (before) root.dataset.theme = before; else delete root.dataset.theme; drawAll(plots); });
  root.dataset.ready = String(plots.length);
}

try {
  begin();
} catch (error) {
  const box = document.getElementById("trouble");
  box.hidden = false;
  box.textContent = `The plots could not be drawn (${error.message}). The tables hold the numbers.`;
}
