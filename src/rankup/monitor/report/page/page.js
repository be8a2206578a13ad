// Puts the page together; what fails is said on the page, whose tables are there without any of it.

// "22 Nov, 18:04 to 19:10, 1 h 6 min"
function stretch(view) {
  const [from, to] = view.range;
  const days = [day(view.page, from), day(view.page, to)];
  const [begin, end] = [from, to].map((at, place) => (days[0] === days[1] ? "" : `${days[place]}, `) + clock(view.page, at, to - from < 3600));
  return `${begin} to ${end}: ${duration(to - from)}`;
}

function controls(view) {
  const byId = (id) => document.getElementById(id);
  view.onchange = () => {
    byId("reset").disabled = !view.changes;
    byId("shown").textContent = view.zoomed
      ? stretch(view)
      : `the whole run, ${duration(view.range[1] - view.range[0])}`;
    for (const button of document.querySelectorAll("[data-mark]"))
      button.setAttribute("aria-pressed", String(view.mark === view.page.marks[Number(button.dataset.mark)]));
  };
  byId("earlier").addEventListener("click", () => view.move(-0.5));
  byId("later").addEventListener("click", () => view.move(0.5));
  byId("closer").addEventListener("click", () => view.scale(0.5));
  byId("farther").addEventListener("click", () => view.scale(2));
  byId("reset").addEventListener("click", () => view.reset());
  const lines = byId("lines");
  lines?.addEventListener("click", () => {
    view.lines = !view.lines;
    lines.setAttribute("aria-pressed", String(view.lines));
    view.changed();
  });
  for (const button of document.querySelectorAll("[data-mark]")) button.addEventListener("click", () => findingShown(view, button));
}

// A finding's button marks its time and its rows in all plots, and a second click takes that away.
function findingShown(view, button) {
  const mark = view.page.marks[Number(button.dataset.mark)];
  if (view.mark === mark) { view.reset(); return; }
  view.mark = mark;
  view.rows = {};
  // A few of very many rows are to be seen from near.
  for (const kind of ["gpu", "host", "rank"]) {
    const rows = markedRows(view.page, { rows: kind }, mark).flat();
    if (rows.length && Math.max(...rows) - Math.min(...rows) < view.page.names[kind].length / 4) view.showRows(kind, Math.min(...rows) - 8, Math.max(...rows) + 8);
  }
  const times = mark.windows.flat();
  if (times.length) {
    const [from, to] = [Math.min(...times), Math.max(...times)];
    const air = Math.max((to - from) * 0.25, view.page.width * 10);
    view.show(from - air, to + air);
  } else {
    view.range = view.whole.slice();
    view.changed();
  }
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  document.getElementById(button.dataset.section)?.scrollIntoView({ behavior: calm ? "auto" : "smooth" });
}

// Paper is light, narrow, and has no place for "when it comes on the screen".
function paper(view) {
  const root = document.documentElement;
  let before = null;
  addEventListener("beforeprint", () => {
    before = { theme: root.dataset.theme, lines: view.lines };
    root.dataset.theme = "light";
    for (const plot of view.plots) {
      if (plot.figure.closest("details:not([open])")) continue;
      plot.width = 690;
      plot.spoil();
      plot.draw();
    }
  });
  addEventListener("afterprint", () => {
    if (before?.theme) root.dataset.theme = before.theme; else delete root.dataset.theme;
    for (const plot of view.plots) plot.width = null;
    view.changed();
  });
}

function lazily(view) {
  const byElement = new Map(view.plots.map((plot) => [plot.figure, plot]));
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const plot = byElement.get(entry.target);
      plot.visible = entry.isIntersecting;
      if (plot.visible) plot.draw();
    }
  }, { rootMargin: "200px" });
  for (const plot of view.plots) watch.observe(plot.figure);
  let width = innerWidth;
  let timer = 0;
  addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { if (innerWidth !== width) { width = innerWidth; view.changed(); } }, 120);
  });
  // What is unfolded has had no width until now.
  document.addEventListener("toggle", () => { for (const plot of view.plots) if (plot.visible) plot.draw(); }, true);
}

function unpackAll(page, buffer) {
  const { nodes, gpus, ranks, nodeOf } = page;
  page.names = { host: nodes, gpu: gpus.map((gpu, at) => `${nodes[nodeOf.gpu[at]]}:${gpu}`), rank: ranks.map((rank, at) => `rank ${rank} on ${nodes[nodeOf.rank[at]]}`) };
  const steps = page.steps && { time: unpacked(buffer, page.steps.time), step: unpacked(buffer, page.steps.step) };
  for (const plot of page.plots) {
    for (const series of plot.series ?? []) for (const key of ["low", "mean", "high"]) series[key] = unpacked(buffer, series[key]);
    if (plot.heat) {
      plot.heat.table = table(unpacked(buffer, plot.heat.cells), plot.heat.rows);
      plot.heat.average = unpacked(buffer, plot.heat.average);
    }
    if (plot.kind === "curve") Object.assign(plot, steps);
    if (plot.kind === "cores") plot.table = table(unpacked(buffer, plot.cells), plot.rows);
  }
}

function failed(error) {
  const box = document.getElementById("trouble");
  box.hidden = false;
  box.textContent = `The plots could not be drawn (${error?.message ?? error}). Everything in words and tables is here; a browser of 2023 or later shows the plots too.`;
}

async function start() {
  const page = JSON.parse(document.getElementById("page-data").textContent);
  unpackAll(page, await decoded(document.getElementById("page-arrays").textContent));
  const view = new View(page);
  const asked = /^#zoom=(-?[\d.]+),(-?[\d.]+)$/.exec(location.hash);
  for (const plot of page.plots) {
    const figure = document.querySelector(`figure[data-plot="${plot.id}"]`);
    if (figure) view.plots.push(new PlotView(view, plot, figure));
  }
  controls(view);
  theme(() => view.changed());
  paper(view);
  lazily(view);
  if (asked) view.show(Number(asked[1]), Number(asked[2]));
  document.documentElement.dataset.ready = String(view.plots.length);
}

start().catch(failed);
