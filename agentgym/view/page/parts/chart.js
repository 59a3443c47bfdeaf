/* Curves over the steps, with their intervals as bands. */
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/htm-preact.module.js";
import uPlot from "../vendor/uPlot.esm.js";
import { figure, interval, isNumber } from "../lib/format.js";
import { colour } from "../lib/theme.js";
import { whenNear } from "../lib/width.js";

const HEIGHT = 150;
const SPARSE = 16; // points up to which each is drawn with its own interval

/* lines: [{label, steps, values, low, high, n, n_of}] -> the x of all, and for each line value, low, high, n at every x. */
export function align(lines) {
  const x = [...new Set(lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
  const at = new Map(x.map((step, index) => [step, index]));
  const spread = (line, column) => {
    const out = new Array(x.length).fill(null);
    if (column) line.steps.forEach((step, index) => (out[at.get(step)] = column[index]));
    return out;
  };
  const columns = lines.map((line) => ({ values: spread(line, line.values), low: spread(line, line.low), high: spread(line, line.high), n: spread(line, line.n) }));
  return { x, columns };
}

function options(lines, columns, { width, bound, range, marks, onCursor }) {
  const soft = colour("--soft");
  const grid = { stroke: colour("--line"), width: 1 };
  const axis = { stroke: soft, font: "11px system-ui, sans-serif", grid, ticks: { ...grid, size: 4 } };
  const series = [{}];
  const bands = [];
  lines.forEach((line, index) => {
    const ink = colour(`--c${(line.tone ?? index) % 6}`);
    const sparse = line.steps.length <= SPARSE;
    series.push({ stroke: ink, width: line.thin ? 1 : 1.75, spanGaps: true, points: { show: sparse, size: 5, fill: ink, stroke: ink } });
    if (line.low) {
      const edge = { stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
      series.push(edge, { ...edge });
      bands.push({ series: [series.length - 1, series.length - 2], fill: colour(`--c${(line.tone ?? index) % 6}`, 0.14) });
    }
  });
  return {
    width, height: HEIGHT, series, bands, legend: { show: false }, padding: [10, 8, 0, 0],
    scales: { x: { time: false, range: xRange }, y: { range: range ?? yRange(bound) } },
    axes: [{ ...axis, size: 24, gap: 3, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : "")) },
      { ...axis, size: 46, gap: 4, space: 28, values: (_, ticks) => ticks.map(tickText) }],
    cursor: { y: false, points: { size: 6 }, drag: { x: true, y: false }, sync: { key: "steps", setSeries: false, scales: ["x", null] } },
    hooks: { setCursor: [(plot) => onCursor(plot.cursor.idx ?? null)], draw: [(plot) => drawn(plot, lines, columns, bound, marks)] },
  };
}

function tickText(tick) {
  const size = Math.abs(tick);
  if (size >= 10000) return `${Number((tick / 1000).toPrecision(3))}k`;
  return size && size < 0.001 ? tick.toExponential(0) : String(Number(tick.toPrecision(4)));
}

function xRange(_, low, high) {
  if (low === null) return [0, 1];
  return low === high ? [low - 1, high + 1] : [low, high];
}

function yRange(bound) {
  return (_, low, high) => {
    if (low === null) return [0, 1];
    if (low === 0 && high === 0) return [0, Math.max(1, bound ?? 1)];
    const top = isNumber(bound) ? Math.max(high, bound) : high;
    const bottom = low >= 0 && low < 0.6 * top ? 0 : low;
    const pad = 0.08 * (top - bottom || Math.abs(top) || 1);
    return [bottom === 0 ? 0 : bottom - pad, top + pad];
  };
}

/* Intervals of single points as whiskers, the bound as a dashed line, changes of settings as dotted ones. */
function drawn(plot, lines, columns, bound, marks) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.lineWidth = ratio;
  lines.forEach((line, index) => {
    if (!line.low || line.steps.length > SPARSE) return;
    ctx.strokeStyle = colour(`--c${(line.tone ?? index) % 6}`, 0.6);
    const { low, high } = columns[index];
    plot.data[0].forEach((step, at) => {
      if (!isNumber(low[at]) || !isNumber(high[at])) return;
      const x = plot.valToPos(step, "x", true);
      ctx.beginPath();
      ctx.moveTo(x, plot.valToPos(low[at], "y", true));
      ctx.lineTo(x, plot.valToPos(high[at], "y", true));
      ctx.stroke();
    });
  });
  if (isNumber(bound)) {
    const y = plot.valToPos(bound, "y", true);
    ctx.strokeStyle = colour("--bad");
    ctx.setLineDash([4 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
  }
  ctx.strokeStyle = colour("--soft");
  ctx.setLineDash([1 * ratio, 3 * ratio]);
  for (const { step } of marks) {
    const x = plot.valToPos(step, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

function reading(line, columns, index, unit) {
  const { values, low, high, n } = columns;
  let at = index;
  while (at > 0 && !isNumber(values[at])) at -= 1; // between two measurements the one before counts
  if (!isNumber(values[at])) return null;
  const of = isNumber(n[at]) ? `n = ${figure(n[at])} ${line.n_of ?? ""}` : `n = ${figure(line.steps.length)} steps`;
  return { value: figure(values[at]), unit, range: interval(low[at], high[at]), n: of, at };
}

function unitText(unit) {
  return !unit || unit === "share" || unit === "number" ? "" : unit;
}

const NONE = [];

/* title, unit, lines as in `align`, each with an optional `tone`. marks: [{step, text}], changes of settings. dark: only so that it is drawn again.
   It is drawn when it comes near the view; then onDrawn is called. */
export function Chart({ title, unit = "", lines, bound, range, marks = NONE, wide = false, dark, onDrawn }) {
  const place = useRef(null);
  const plot = useRef(null);
  const [at, setAt] = useState(null);
  const { x, columns } = useMemo(() => align(lines), [lines]);
  const data = useMemo(() => [x, ...lines.flatMap((line, i) => (line.low ? [columns[i].values, columns[i].low, columns[i].high] : [columns[i].values]))], [columns]);
  const shape = lines.map((line) => `${line.label}${line.low ? "+" : ""}${line.steps.length <= SPARSE}`).join("|");
  const [width, setWidth] = useState(0); // until it is near the view
  useLayoutEffect(() => whenNear(place.current, setWidth), []);
  useLayoutEffect(() => {
    if (!width) return;
    plot.current = new uPlot(options(lines, columns, { width, bound, range, marks, onCursor: setAt }), data, place.current);
    onDrawn?.();
    return () => plot.current.destroy();
  }, [width > 0, dark, shape, bound, marks.length]);
  useEffect(() => {
    if (plot.current && plot.current.data !== data) plot.current.setData(data);
  }, [data]);
  useEffect(() => {
    if (!width) return;
    const resized = () => {
      const now = place.current?.clientWidth;
      if (now && now !== plot.current.width) plot.current.setSize({ width: now, height: HEIGHT });
    };
    const watch = new ResizeObserver(resized);
    watch.observe(place.current);
    return () => watch.disconnect();
  }, [width > 0]);
  const index = at ?? x.length - 1;
  const readings = lines.map((line, i) => reading(line, columns[i], index, unitText(unit)));
  const move = (event) => {
    if (!plot.current || (event.key !== "ArrowLeft" && event.key !== "ArrowRight")) return;
    event.preventDefault();
    const to = Math.min(x.length - 1, Math.max(0, index + (event.key === "ArrowLeft" ? -1 : 1)));
    plot.current.setCursor({ left: plot.current.valToPos(x[to], "x"), top: 10 });
  };
  const said = readings.map((r, i) => (r ? `${lines[i].label} ${r.value} ${r.unit} ${r.range} ${r.n}` : "")).join("; ");
  return html`<figure class="curve ${wide ? "wide" : ""}">
    <figcaption><b>${title}</b><span class="soft latest">${unitText(unit) ? `${unitText(unit)} · ` : ""}step ${figure(x[index])}</span></figcaption>
    <div class="legend">
      ${lines.map((line, i) => readings[i] && html`<span key=${line.label}><i class="s${(line.tone ?? i) % 6}"></i>${lines.length > 1 ? `${line.label} ` : ""}<b>${readings[i].value}</b> ${readings[i].unit} ${readings[i].range} ${readings[i].n}</span>`)}
    </div>
    <div class="plot" ref=${place} tabindex="0" role="img" onKeyDown=${move} aria-label=${`${title}, ${x.length} steps. At step ${figure(x[index])}: ${said}. Left and right arrows read other steps.`}></div>
  </figure>`;
}
