/* Where the time goes: each phase's share of the wall time, and a stacked bar for each step. */
import { html } from "../vendor/htm-preact.module.js";
import { duration, percent } from "../lib/format.js";
import { useWidth } from "../lib/width.js";

const WORDS = { generate: "sampling", sandbox: "sandbox", train: "training", reference: "reference model", publish: "weight updates" };

function tone(phases, phase) {
  return `s${phases.indexOf(phase) % 6}`;
}

/* Steps are joined until at most `columns` are left; each column is the mean of its steps. */
export function joined(time, columns = 120) {
  const per = Math.max(1, Math.ceil(time.steps.length / columns));
  const mean = (values, from) => {
    const part = values.slice(from, from + per).filter((value) => value !== null);
    return part.length ? part.reduce((a, b) => a + b, 0) / part.length : 0;
  };
  return Array.from({ length: Math.ceil(time.steps.length / per) }, (_, i) => ({
    step: time.steps[i * per],
    wall: mean(time.step_s, i * per),
    parts: time.phases.map((phase) => mean(time.columns[phase] ?? [], i * per)),
  }));
}

export function Phases({ shares, busy, time }) {
  const phases = shares.map((row) => row.phase);
  const bars = time ? joined(time) : [];
  const top = Math.max(...bars.map((bar) => Math.max(bar.wall, bar.parts.reduce((a, b) => a + b, 0))), 1e-9);
  const [place, width] = useWidth();
  const height = 110, left = 44;
  const wide = (width - left) / Math.max(1, bars.length);
  const y = (value) => height - (value / top) * (height - 8);
  return html`<div ref=${place}>
    <table>
      <caption class="visually-hidden">Share of the wall time with such a call in flight</caption>
      <thead><tr><th>phase</th><th class="num">time</th><th class="num">share of the wall time</th><td class="hide-narrow"></td></tr></thead>
      <tbody>
        ${shares.filter((row) => row.seconds > 0).map(
          (row) => html`<tr key=${row.phase}>
            <td><i class="swatch bar ${tone(phases, row.phase)}"></i>${WORDS[row.phase] ?? row.phase}</td>
            <td class="num">${duration(row.seconds)}</td><td class="num">${percent(row.share)}</td>
            <td class="hide-narrow"><svg width="160" height="12" aria-hidden="true"><rect class="bar rest" width="160" height="10" y="2" /><rect class="bar ${tone(phases, row.phase)}" width=${Math.min(1, row.share) * 160} height="10" y="2" /></svg></td>
          </tr>`,
        )}
      </tbody>
    </table>
    <p class="note">Calls overlap, so the shares may add up to more than 100%${busy === null || busy === undefined ? "" : `; something was in flight for ${percent(busy)} of the time`}.</p>
    ${bars.length > 0 && width > 0 &&
    html`<svg width=${width} height=${height + 18} role="img" aria-label=${`Seconds of each step by phase, ${bars.length} bars; the longest step took ${duration(Math.max(...bars.map((b) => b.wall)))}`}>
      <text x=${left - 6} y=${y(top) + 6} text-anchor="end">${duration(top)}</text><text x=${left - 6} y=${height} text-anchor="end">0 s</text>
      <line class="axis" x1=${left} x2=${width} y1=${height} y2=${height} />
      ${bars.map((bar, i) => {
        let under = 0;
        return bar.parts.map((part, k) => {
          under += part;
          return part > 0 && html`<rect class="bar ${tone(phases, time.phases[k])}" x=${left + i * wide + 0.5} y=${y(under)} width=${Math.max(0.5, wide - 1)} height=${Math.max(0, y(under - part) - y(under))} />`;
        });
      })}
      <text x=${left} y=${height + 14}>step ${bars[0].step}</text><text x=${width} y=${height + 14} text-anchor="end">${bars.at(-1).step}</text>
    </svg>`}
  </div>`;
}
