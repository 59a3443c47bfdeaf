/* The leaderboard: models, checkpoints and API models by benchmark. */
import { html } from "../vendor/htm-preact.module.js";
import { Listing } from "../parts/listing.js";
import { figure, harmless } from "../lib/format.js";
import { link } from "../lib/url.js";

const COLUMNS = [
  { key: "environment", label: "benchmark", value: (run) => run.environment, cell: (run) => harmless(run.environment) },
  { key: "model", label: "model", value: (run) => run.model || run.name, cell: (run) => html`<a href=${link("run", { run: run.id })}>${harmless(run.model || run.name)}</a>` },
  { key: "success", label: "success", num: true, falling: true, value: (run) => run.held_out, cell: (run) => figure(run.held_out) },
  { key: "tasks", label: "tasks", num: true, falling: true, value: (run) => run.tasks, cell: (run) => figure(run.tasks) },
];

export function LeaderboardView({ runs, params }) {
  const rows = runs.filter((run) => typeof run.held_out === "number");
  if (!rows.length) return html`<p class="empty">No evaluations are here yet. <code>agentgym eval MODEL --env math</code> makes one.</p>`;
  return html`<h1>Leaderboard</h1>
    <${Listing} view="leaderboard" params=${params} columns=${COLUMNS} rows=${rows} text=${(run) => `${run.environment} ${run.model} ${run.name}`} what="evaluations" sort="-success" />`;
}
