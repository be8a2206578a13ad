// Numbers and times as people say them.

function duration(seconds) {
  const sign = seconds < 0 ? "−" : "";
  const whole = Math.round(Math.abs(seconds));
  const [d, h, m, s] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60, whole % 60];
  const parts = [[d, "d"], [h, "h"], [m, "min"], [d ? 0 : s, "s"]].filter(([count]) => count);
  return sign + (parts.map(([count, unit]) => `${count} ${unit}`).join(" ") || "0 s");
}

// The clock of the machine where the run was, whatever the reader's is.
function clock(page, seconds, withSeconds = true) {
  const date = new Date((page.begin + page.offset + seconds) * 1000);
  return date.toISOString().slice(11, withSeconds ? 19 : 16);
}

function day(page, seconds) {
  const date = new Date((page.begin + page.offset + seconds) * 1000);
  return `${date.getUTCDate()} ${date.toLocaleString("en-GB", { month: "short", timeZone: "UTC" })}`;
}

function number(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e7)) return value.toExponential(2);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 4;
  return value.toLocaleString("en-GB", { maximumFractionDigits: digits });
}

// Plotly reads some HTML in its labels; nothing from outside may be read as such.
function label(text, most = 24) {
  const cut = text.length > most ? `${text.slice(0, most - 1)}…` : text;
  return cut.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

// Round times for an axis from `from` to `to` (seconds), about `most` of them.
function timeTicks(page, from, to, most) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  const wanted = (to - from) / most;
  const step = steps.find((one) => one >= wanted) ?? Math.ceil(wanted / 86400) * 86400;
  // Round on the clock of the run, so that ticks read 14:00, 14:15, …
  const shift = (page.begin + page.offset) % step;
  const values = [];
  for (let at = Math.ceil((from + shift) / step) * step - shift; at <= to; at += step) values.push(at);
  let last = "";
  const texts = values.map((at) => {
    const today = day(page, at);
    const date = day(page, from) !== day(page, to) && today !== last ? `${today} ` : "";
    last = today;
    return `${date}${clock(page, at, step < 60)}<br>${at < -0.5 ? "−" : "+"}${shortDuration(Math.abs(at))}`;
  });
  return { values, texts };
}

function shortDuration(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}` + (whole % 60 ? `:${String(whole % 60).padStart(2, "0")}` : " min");
  return `${Math.floor(whole / 3600)}:${String(Math.floor(whole / 60) % 60).padStart(2, "0")} h`;
}
