/* The list of runs: searched, sorted, and as it was left when the reader comes back. */
import { html } from "../vendor/htm-preact.module.js";
import { Listing } from "../parts/listing.js";
import { ago, figure, fixed, harmless, interval, signed } from "../lib/format.js";
import { amend, link } from "../lib/url.js";

const KINDS = { train: "training", sft: "fine-tuning", eval: "evaluation" };

const COLUMNS = [
  { key: "name", label: "run", value: (run) => run.name, cell: (run) => html`<a href=${link("run", { run: run.id })}>${harmless(run.name)}</a> ${run.unsafe && html`<span class="tag bad">unsafe sandbox</span>`}
    <div class="soft only-narrow"><i class="dot ${run.status}"></i>${run.status}, ${harmless(run.environment ?? "")}</div>` },
  { key: "kind", label: "kind", wide: true, value: (run) => KINDS[run.kind] ?? run.kind },
  { key: "status", label: "status", wide: true, value: (run) => run.status, cell: (run) => html`<i class="dot ${run.status}"></i>${run.status}` },
  { key: "environment", label: "environment", wide: true, value: (run) => run.environment || null, cell: (run) => harmless(run.environment ?? "") },
  { key: "step", label: "step", num: true, wide: true, falling: true, value: (run) => run.step, cell: (run) => (run.kind === "eval" ? "" : `${figure(run.step)}${run.steps ? ` of ${figure(run.steps)}` : ""}`) },
  { key: "success", label: "training success", wide: true, falling: true, value: (run) => run.success, cell: (run) => html`<${Spark} values=${run.spark} /> ${fixed(run.success, 3)}` },
  { key: "held_out", label: "success", title: "of held-out tasks, in the newest evaluation", num: true, falling: true, value: (run) => run.held_out ?? run.held_out_reward, cell: (run) => (run.held_out === null && run.held_out_reward !== null ? `${fixed(run.held_out_reward, 3)} (reward)` : fixed(run.held_out, 3)) },
  { key: "tasks", label: "tasks", num: true, falling: true, value: (run) => run.tasks, cell: (run) => figure(run.tasks) },
  { key: "gain", label: "paired difference", num: true, wide: true, falling: true, value: (run) => run.gain?.mean, cell: (run) => (run.gain ? html`${signed(run.gain.mean)} <small class="soft">${interval(run.gain.low, run.gain.high)}</small>` : "–") },
  { key: "changed", label: "changed", falling: true, value: (run) => run.changed, cell: (run) => html`<span class="soft">${ago(run.changed)}</span>` },
];

function searched(run) {
  return [run.name, run.root, run.kind, KINDS[run.kind], run.status, run.environment, run.model].join(" ");
}

export function RunsView({ runs, params }) {
  if (!runs.length) return html`<p class="empty">No runs are here yet. <code>agentgym train --env math</code> makes one.</p>`;
  const kinds = Object.keys(KINDS).filter((kind) => runs.some((run) => run.kind === kind));
  const shown = params.kind ? runs.filter((run) => run.kind === params.kind) : runs;
  return html`<h1>Runs</h1>
    <${Listing} view="runs" params=${params} columns=${COLUMNS} rows=${shown} text=${searched} what="runs" sort="-changed">
      ${kinds.length > 1 && html`<label>kind <select value=${params.kind ?? ""} onChange=${(event) => amend("runs", { ...params, kind: event.target.value })}><option value="">any</option>${kinds.map((kind) => html`<option value=${kind} selected=${params.kind === kind}>${KINDS[kind]}</option>`)}</select></label>`}
    <//>`;
}

function Spark({ values }) {
  const known = (values ?? []).filter((value) => value !== null);
  if (known.length < 2) return null;
  const points = known.map((value, i) => `${(i * 80) / (known.length - 1)},${15 - 13 * Math.min(1, Math.max(0, value))}`).join(" ");
  return html`<svg class="spark" width="80" height="16" aria-hidden="true"><polyline points=${points} fill="none" class="line" /></svg>`;
}
