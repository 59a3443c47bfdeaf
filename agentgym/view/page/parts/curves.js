/* The curves of a run, joined into panels: those that are read together share one. */
import { html, useMemo } from "../vendor/htm-preact.module.js";
import { Chart } from "./chart.js";
import { figure, harmless } from "../lib/format.js";
import { query, runPath, useData } from "../lib/data.js";
import { amend } from "../lib/url.js";

const JOINED = [
  { title: "Success", keys: ["eval/success", "rollout/success_mean"], wide: true, range: [0, 1] },
  { title: "KL", keys: ["train/mismatch_kl", "train/kl_ref"] },
  { title: "Staleness", keys: ["loop/staleness_mean", "loop/staleness_max"] },
];

const TITLES = { "eval/difference": "Paired difference to the first step" };

/* curves as the server gives them -> panels [{title, unit, lines, bound, range, wide}], in the order of the curves. */
export function panelsOf(curves) {
  const known = curves.filter((curve) => curve.steps.length);
  const done = new Set();
  const panels = [];
  for (const curve of known) {
    if (done.has(curve.key)) continue;
    const joint = JOINED.find(({ keys }) => keys.includes(curve.key));
    const together = joint ? joint.keys.map((key) => known.find((other) => other.key === key)).filter(Boolean) : [curve];
    together.forEach((other) => done.add(other.key));
    panels.push({
      key: joint?.title ?? curve.key,
      title: joint && together.length > 1 ? joint.title : TITLES[curve.key] ?? sentenceCase(curve.label ?? curve.key),
      unit: curve.unit,
      lines: together.map((other, tone) => ({ ...other, tone, thin: other.key.startsWith("rollout/") })),
      bound: together.find((other) => other.bound !== undefined && other.bound !== null)?.bound,
      range: joint?.range ?? (curve.unit === "share" && curve.key !== "eval/difference" ? [0, 1] : undefined),
      wide: joint?.wide ?? false,
    });
  }
  return panels;
}

function sentenceCase(text) {
  return harmless(text[0].toUpperCase() + text.slice(1));
}

export function Curves({ run, curves, params, dark, fresh, onDrawn }) {
  const chosen = (params.more ?? "").split(",").filter(Boolean);
  const more = useData(chosen.length ? runPath(run, `/curves${query({ keys: chosen.join(",") })}`) : null, { again: fresh });
  const panels = useMemo(() => panelsOf(curves.curves), [curves]);
  const extra = useMemo(() => (more.data ? panelsOf(more.data.curves.filter((one) => !curves.curves.some((other) => other.key === one.key))) : []), [more.data, curves]);
  const shownKeys = new Set([...curves.curves.map((curve) => curve.key), ...chosen]);
  const others = curves.names.filter((name) => !shownKeys.has(name));
  const set = (keys) => amend("run", { ...params, more: keys.join(",") });
  return html`<section aria-labelledby="curves">
    <div class="head spread"><h2 id="curves">Curves</h2>
      <span class="row">
        ${chosen.map((key) => html`<button class="quiet" onClick=${() => set(chosen.filter((other) => other !== key))} aria-label=${`remove ${key}`}>${key} ×</button>`)}
        ${others.length > 0 &&
        html`<label>add <select onChange=${(event) => event.target.value && set([...chosen, event.target.value])}><option value="">a metric of ${others.length}…</option>${others.map((name) => html`<option>${name}</option>`)}</select></label>`}
      </span></div>
    ${panels.length + extra.length === 0 && html`<p class="empty">No step is finished yet.</p>`}
    <div class="curves">${[...panels, ...extra].map((panel) => html`<${Chart} ...${panel} key=${panel.key} marks=${curves.changes} dark=${dark} onDrawn=${onDrawn} />`)}</div>
    ${curves.changes?.length > 0 && html`<p class="note">Dotted lines: ${curves.changes.map(({ step, text }) => `after step ${figure(step)} ${harmless(text)}`).join("; ")}.</p>`}
    <p class="note">Bands and whiskers are 95% intervals. Drag over a curve to look closer, double-click to see all again.</p>
  </section>`;
}
