/* Figures as a person reads them: never more digits than they carry, always with their unit. */

export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/* toLocaleString would load the tables of all languages first. */
function grouped(whole) {
  return String(whole).replace(/\B(?=(\d{3})+$)/g, ",");
}

/* A cost; nothing is known without a price, and that is not 0. */
export function money(value, currency) {
  return isNumber(value) ? `${value.toFixed(value && value < 0.01 ? 6 : 4)} ${harmless(currency)}` : "–";
}

export function figure(value, digits = 3) {
  if (!isNumber(value)) return "–";
  if (value < 0) return `−${figure(-value, digits)}`;
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return grouped(value);
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(2)}M`;
  if (size >= 1000) return grouped(Math.round(value));
  if (size >= 100) return value.toFixed(1);
  const text = value.toFixed(digits);
  return value && !Number(text) ? value.toExponential(1) : text;
}

/* As many digits in every row of a column. */
export function fixed(value, digits = 2) {
  return isNumber(value) ? minus(value, digits, (size) => size.toFixed(digits)) : "–";
}

export function signed(value, digits = 3) {
  return isNumber(value) ? `${value < 0 ? "−" : "+"}${figure(Math.abs(value), digits)}` : "–";
}

export function interval(low, high, digits = 3) {
  return isNumber(low) && isNumber(high) ? `[${minus(low, digits)}, ${minus(high, digits)}]` : "";
}

/* An interval with as many digits in every row. */
export function span(low, high, digits = 3) {
  return isNumber(low) && isNumber(high) ? `[${fixed(low, digits)}, ${fixed(high, digits)}]` : "";
}

function minus(value, digits, text = (size) => figure(size, digits)) {
  return value < 0 ? `−${text(-value)}` : text(value);
}

export function percent(share) {
  if (!isNumber(share)) return "–";
  const value = 100 * share;
  return `${value && value < 1 ? value.toFixed(1) : Math.round(value)}%`;
}

export function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds < 0.0995) return `${(1000 * seconds).toPrecision(seconds < 0.001 ? 1 : 2)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  const two = (value) => String(value).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

const AGES = [[60, 1, "s"], [3600, 60, "min"], [48 * 3600, 3600, "h"], [Infinity, 86400, "days"]]; // seconds below, seconds of the unit

export function ago(then, now = Date.now() / 1000) {
  if (!isNumber(then) || then <= 0) return "";
  const [, size, unit] = AGES.find(([below]) => now - then < below);
  return `${Math.max(0, Math.floor((now - then) / size))} ${unit} ago`;
}

export function date(seconds) {
  return isNumber(seconds) && seconds > 0 ? new Date(1000 * seconds).toLocaleString("sv-SE").slice(0, 16) : "–";
}

export function count(number, one, many = `${one}s`) {
  return `${figure(number)} ${number === 1 ? one : many}`;
}

export function plain(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}

/* Characters that act on what surrounds them, each with what is shown in its place: terminal escapes, directions. */
const ACTING = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/;
const ACTING_ALL = new RegExp(ACTING.source, "g");

export function isActing(text) {
  return ACTING.test(text);
}

export function shownCharacter(character) {
  const code = character.codePointAt(0).toString(16);
  return code.length > 2 ? `\\u${code.padStart(4, "0")}` : `\\x${code.padStart(2, "0")}`;
}

/* The text with acting characters replaced by what can be seen. */
export function harmless(text) {
  return isActing(text) ? text.replace(ACTING_ALL, shownCharacter) : text;
}

/* Splits a text into pieces: [text, acting?]. */
export function pieces(text) {
  const found = [];
  let from = 0;
  for (const match of text.matchAll(ACTING_ALL)) {
    if (match.index > from) found.push([text.slice(from, match.index), false]);
    found.push([shownCharacter(match[0]), true]);
    from = match.index + match[0].length;
  }
  if (from < text.length) found.push([text.slice(from), false]);
  return found;
}
