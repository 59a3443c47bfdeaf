/* Small pieces that every view uses. */
import { html, useEffect, useRef } from "../vendor/htm-preact.module.js";
import { figure, harmless, interval, signed } from "../lib/format.js";

export function Failed({ failure }) {
  if (!failure) return null;
  return html`<div class="failure" role="alert">
    ${harmless(failure.message)} ${failure.nearest && html`<span>Did you mean <code>${failure.nearest}</code>?</span>`}
  </div>`;
}

export function Loading({ what = "Loading" }) {
  return html`<p class="empty" role="status">${what}…</p>`;
}

export function Outcome({ row }) {
  if (row.error === "episode: cut" || row.error?.kind === "cut") return html`<span class="tag warn">cut by time</span>`;
  if (row.outcome === "infra_error") return html`<span class="tag bad">infrastructure error</span>`;
  if (row.outcome === "invalid") return html`<span class="tag warn">invalid</span>`;
  if (!row.outcome) return html`<span class="tag">unfinished</span>`;
  return row.success ? html`<span class="tag good">success</span>` : html`<span class="tag">${row.success === null ? row.outcome : "no success"}</span>`;
}

/* Whether an evaluation knows its reward alone: its environment recorded no success. */
export function ofReward(one) {
  return one.success === null && typeof one.reward_mean === "number";
}

/* What an evaluation is measured by, with its interval: success, or the reward where no success is known. */
export function main(one) {
  return ofReward(one) ? { mean: one.reward_mean, low: one.reward_low, high: one.reward_high } : { mean: one.success, low: one.low, high: one.high };
}

export function Status({ run }) {
  return html`<span><i class="dot ${run.status}"></i>${run.status}</span>`;
}

/* A mean with its 95% interval. n says of what. */
export function Estimate({ mean, low, high, n, of = "tasks", plus = false }) {
  const text = plus ? signed(mean) : figure(mean);
  return html`<span>${text} <small class="soft">${interval(low, high)}${n ? ` n = ${n} ${of}` : ""}</small></span>`;
}

export function Segmented({ label, options, value, onChange }) {
  return html`<div class="segmented" role="group" aria-label=${label}>
    ${options.map(
      ([key, text, title]) =>
        html`<button type="button" key=${key} title=${title} aria-pressed=${key === value ? "true" : "false"} onClick=${() => onChange(key)}>${text}</button>`,
    )}
  </div>`;
}

/* A dialog that is open while it is drawn; Escape and the backdrop close it. */
export function Dialog({ title, onClose, children }) {
  const element = useRef(null);
  useEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    return () => dialog.open && dialog.close();
  }, []);
  return html`<dialog ref=${element} aria-label=${title} onCancel=${onClose} onClick=${(event) => event.target === element.current && onClose()}>
    <h2>${title}</h2>
    ${children}
  </dialog>`;
}

export function Facts({ pairs }) {
  return html`<dl class="facts">
    ${pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}
  </dl>`;
}

/* A mean and its interval on a line from `from` to `to`. The figures stand beside it. */
export function IntervalBar({ mean, low, high, from = 0, to = 1, width = 120 }) {
  if (![mean, low, high].every((value) => typeof value === "number")) return null;
  const x = (value) => 5 + ((value - from) / (to - from || 1)) * (width - 10);
  return html`<svg class="interval" width=${width} height="14" aria-hidden="true"><line class="axis" x1="5" x2=${width - 5} y1="7" y2="7" /><line class="axis" x1="5" x2="5" y1="3" y2="11" /><line class="axis" x1=${width - 5} x2=${width - 5} y1="3" y2="11" />
    <line class="line thick" x1=${x(low)} x2=${x(high)} y1="7" y2="7" /><circle class="bar s0" cx=${x(mean)} cy="7" r="4" /></svg>`;
}
