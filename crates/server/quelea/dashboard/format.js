// How numbers, times and payloads are written.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const exact = new Intl.DateTimeFormat("en-CA", {
  dateStyle: "short", timeStyle: "medium", hourCycle: "h23",
});

export const number = (value) => (value == null ? "–" : grouped.format(value));

// A number of at most four characters and its unit: 1.2 k, 340, 5.1 M.
export function short(value) {
  if (value == null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  const at = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([unit]) => size >= unit * 0.9995);
  if (at) return `${trim(value / at[0])}\u202f${at[1]}`;
  return size < 10 && value % 1 !== 0 ? value.toFixed(size < 1 ? 2 : 1) : String(Math.round(value));
}

export function bytes(value) {
  if (value == null || Number.isNaN(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (Math.abs(value) >= 1024 && place < units.length - 1) {
    value /= 1024;
    place += 1;
  }
  return `${place === 0 ? Math.round(value) : trim(value)}\u202f${units[place]}`;
}

const trim = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(1));

export function duration(secs) {
  if (secs == null) return "–";
  secs = Math.max(0, Math.round(secs));
  const [days, hours, minutes] = [secs / 86400, (secs % 86400) / 3600, (secs % 3600) / 60];
  const text = (large, unit, small, of) =>
    `${Math.floor(large)} ${unit}${Math.floor(small) ? ` ${Math.floor(small)} ${of}` : ""}`;
  if (secs >= 86400) return text(days, "d", hours, "h");
  if (secs >= 3600) return text(hours, "h", minutes, "min");
  if (secs >= 60) return text(minutes, "min", secs % 60, "s");
  return `${secs} s`;
}

export const millis = (secs) => {
  if (secs == null) return "–";
  if (secs >= 1) return `${trim(secs)} s`;
  return secs < 0.001 ? `${Math.round(secs * 1e6)} µs` : `${short(secs * 1000)} ms`;
};

export const dateTime = (ms) => exact.format(new Date(ms)).replace(",", "");

// "5 min ago", "in 3 d".
export function relative(ms, nowMs = Date.now()) {
  const secs = Math.round((ms - nowMs) / 1000);
  const span = duration(Math.abs(secs)).split(" ").slice(0, 2).join(" ");
  if (Math.abs(secs) < 1) return "now";
  return secs < 0 ? `${span} ago` : `in ${span}`;
}

export function bytesOfBase64(text) {
  const chars = atob(text);
  const data = new Uint8Array(chars.length);
  for (let place = 0; place < chars.length; place += 1) data[place] = chars.charCodeAt(place);
  return data;
}

// A page shows no more of a payload: a browser fails at a text of megabytes.
export const SHOWN_BYTES_MAX = 65_536;
// As hexadecimal digits it is five times as long.
const HEX_BYTES_MAX = 16_384;

// Text if the bytes are readable UTF-8, else hexadecimal, 16 bytes a line. `size`: of the whole.
// `shown`: how many of its bytes the text has.
export function payload(whole, size = whole.length) {
  let data = whole.subarray(0, SHOWN_BYTES_MAX);
  try {
    // A cut may be within a character.
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data, { stream: data.length < size });
    if (!/[\u0000-\u0008\u000e-\u001f]/.test(text)) return { kind: "text", text, shown: data.length };
  } catch {
    // Not UTF-8.
  }
  data = data.subarray(0, HEX_BYTES_MAX);
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = [...data.slice(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const shown = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "."));
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex}  ${shown.join("")}`);
  }
  return { kind: "binary", text: lines.join("\n"), shown: data.length };
}

// Levels of a JSON text that are set in: with each level a line gets longer.
const LEVELS_MAX = 50;

export function pretty(text) {
  let [level, deepest] = [0, 0];
  for (const char of text) {
    if (char === "[" || char === "{") deepest = Math.max(deepest, ++level);
    else if (char === "]" || char === "}") level -= 1;
  }
  if (deepest > LEVELS_MAX) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

// The begin of a text that a client has chosen.
export const clipped = (text, max = 1024) => (text.length > max ? `${text.slice(0, max)}…` : text);
