// The arrays of the page: `pack.py` wrote them, as gzip in base64.

async function decoded(text) {
  const packed = atob(text.trim());
  const bytes = new Uint8Array(packed.length);
  for (let at = 0; at < packed.length; at++) bytes[at] = packed.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

// An array as Float32Array; NaN stands for what was not sampled.
function unpacked(buffer, reference) {
  const { at, count, kind, low, step } = reference;
  if (kind === "f4") return new Float32Array(buffer, at, count);
  const codes = kind === "u2" ? new Uint16Array(buffer, at, count) : new Uint8Array(buffer, at, count);
  const missing = kind === "u2" ? 65535 : 255;
  const values = new Float32Array(count);
  for (let i = 0; i < count; i++) values[i] = codes[i] === missing ? NaN : low + codes[i] * step;
  return values;
}

// Rows of a table as views, without a copy.
function table(values, rows) {
  const columns = rows ? values.length / rows : 0;
  return Array.from({ length: rows }, (_, row) => values.subarray(row * columns, (row + 1) * columns));
}
