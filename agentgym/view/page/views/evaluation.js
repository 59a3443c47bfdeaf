/* An evaluation: its success with the interval first, then what it is made of, then its tasks beside those of others. */
import { html, useEffect, useState } from "../vendor/htm-preact.module.js";
import { Failed, IntervalBar, Loading } from "../parts/bits.js";
import { Chart } from "../parts/chart.js";
import { panelsOf } from "../parts/curves.js";
import { Matrix } from "../parts/matrix.js";
import { runPath, useData } from "../lib/data.js";
import { count, date, duration, figure, fixed, harmless, percent, span } from "../lib/format.js";
import { useFresh } from "../lib/fresh.js";
import { byKey } from "../lib/rows.js";
import { go, link } from "../lib/url.js";
import { Events, Settings } from "./run.js";

const EXTREMES = 6; // tasks of a list
const CURVE = ["eval/success", "eval/reward"];

function Head({ one, run, steps, params }) {
  const { summary: about, status } = one;
  const running = !one.finished && status === "running";
  return html`<div><div class="row spread"><h1>${harmless(about.policy)} on ${harmless(about.environment)}</h1>
      ${steps.length > 1 && html`<label>evaluation of step <select onChange=${(event) => go("evaluation", { ...params, run: run.id, step: event.target.value })}>${steps.map((step) => html`<option value=${step} selected=${step === one.step}>${step}</option>`)}</select></label>`}</div>
    <p class="soft"><i class="dot ${one.finished ? "done" : status === "done" ? "interrupted" : status}"></i>${one.finished ? "finished" : running ? "running" : `not finished${status === "done" ? "" : `, ${status}`}`} ${date(about.time)}, ${count(one.planned / (about.samples_per_task || 1), "task")}${about.samples_per_task > 1 ? ` × ${figure(about.samples_per_task)} samples` : ""}, version ${about.version}${about.options ? `, ${harmless(about.options)}` : ""}${about.agent === "chat" ? "" : `, agent ${harmless(about.agent)}`}${about.sandbox ? `, sandbox ${harmless(about.sandbox)}` : ""}${about.greedy ? ", greedy" : ""}
      ${about.tags.map((tag) => html` <span class="tag">${harmless(tag)}</span>`)}${about.note ? html` “${harmless(about.note)}”` : ""}</p>
    ${one.finished && one.played > 0 && one.played < one.planned && html`<p class="bad" role="status">Only ${figure(one.played)} of ${count(one.planned, "episode")} could be read, so figures made of episodes are wrong: <code>agentgym runs audit ${harmless(`${run.root}/${run.name}`)}</code></p>`}
    ${!one.finished && html`<p class="row" role="status"><progress max=${one.planned} value=${one.played} aria-label="episodes played"></progress> ${figure(one.played)} of ${count(one.planned, "episode")}. Short episodes end first, so the figures still move.${!running && run.kind === "eval" ? html` Continue it: <code>agentgym eval --resume ${harmless(`${run.root}/${run.name}`)}</code>` : ""}</p>`}</div>`;
}

/* The one figure, then the smaller ones. */
function Measured({ one }) {
  const { summary: about, all } = one;
  const reward = about.rewards.find((row) => row.name === "");
  const left = about.num_broken + about.num_left_out;
  const cells = [
    ...all.pass_at.filter(({ k }) => k > 1).map((pass) => [`pass@${pass.k}`, fixed(pass.value, 3), span(pass.low, pass.high)]),
    all.of === "success" && reward && ["reward", fixed(reward.mean, 3), span(reward.low, reward.high)],
    ["tokens of an episode", figure(about.tokens === null ? null : about.tokens / Math.max(1, one.played), 1), about.turns === null ? "" : `${figure(about.turns, 1)} ${about.turns === 1 ? "turn" : "turns"}`],
    ["cost", about.cost === null ? "–" : `${figure(about.cost, 4)} ${harmless(about.currency)}`, about.cost === null ? "" : `${figure(about.cost / Math.max(1, one.played), 5)} an episode`],
    ["time of an episode", duration(about.seconds), ""],
    ["retries", figure(one.retries), ""],
    ["left out", figure(left), left ? `of ${figure(one.played)}` : ""],
  ];
  return html`<div><div class="headline"><p><b>${fixed(all.value, 3)}</b> <span>${all.of} <span class="nowrap">${span(all.low, all.high)}</span></span></p>
      ${all.of === "success" && html`<${IntervalBar} mean=${all.value} low=${all.low} high=${all.high} width=${260} />`}
      <p class="soft">95% interval over ${count(all.tasks, "task")}, ${count(all.episodes, "episode")}${all.of === "success" && about.success ? `, ${figure(about.success.num_successes)} solved` : ""}</p></div>
    <dl class="strip">${cells.filter(Boolean).map(([name, value, more]) => html`<div><dt>${name}</dt><dd>${value} <small>${more}</small></dd></div>`)}</dl></div>`;
}

function BarHead() {
  return html`<th class="hide-narrow"><span class="visually-hidden">drawn</span></th>`;
}

/* Success by one property of the tasks. rows: what `measured` of the server gives, with the kind of each. */
function Shares({ name, rows }) {
  const id = `by-${name}`;
  const ks = [...new Set(rows.flatMap((row) => row.pass_at.map((pass) => pass.k)))].filter((k) => k > 1).sort((a, b) => a - b);
  return html`<section aria-labelledby=${id}><h2 id=${id}>By ${name}</h2>
    <div class="scroll"><table class="figures"><thead><tr><th>${name}</th><th class="num">tasks</th><th class="num">${rows[0].of}</th><th>95% interval</th><${BarHead} />${ks.map((k) => html`<th class="num ${k === ks.at(-1) ? "" : "hide-narrow"}">pass@${k}</th><th class="hide-narrow">95% interval</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.kind}><td class=${typeof row.kind === "string" ? "kind" : ""}>${harmless(String(row.kind))}</td><td class="num">${figure(row.tasks)}</td><td class="num">${fixed(row.value, 3)}</td><td class="nowrap">${span(row.low, row.high)}</td>
        <td class="hide-narrow">${row.of === "success" && html`<${IntervalBar} mean=${row.value} low=${row.low} high=${row.high} />`}</td>
        ${ks.map((k) => {
          const pass = row.pass_at.find((one) => one.k === k);
          return html`<td class="num ${k === ks.at(-1) ? "" : "hide-narrow"}">${fixed(pass?.value, 3)}</td><td class="nowrap hide-narrow">${pass ? span(pass.low, pass.high) : ""}</td>`;
        })}</tr>`)}</tbody></table></div></section>`;
}

/* rows: means of rewards, or of what the environment measures. */
function Means({ id, title, rows }) {
  if (!rows.length) return null;
  const from = Math.min(0, ...rows.map((row) => row.low ?? row.mean)), to = Math.max(1, ...rows.map((row) => row.high ?? row.mean));
  return html`<section aria-labelledby=${id}><h2 id=${id}>${title}</h2>
    <div class="scroll"><table class="figures"><thead><tr><th>name</th><th class="num">mean</th><th>95% interval</th><${BarHead} /></tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.name}><td class="kind">${row.name ? harmless(row.name) : "total"}</td><td class="num">${fixed(row.mean, 3)}</td><td class="nowrap">${span(row.low, row.high) || "–"}</td><td class="hide-narrow"><${IntervalBar} ...${row} from=${from} to=${to} /></td></tr>`)}</tbody></table></div></section>`;
}

function Endings({ one }) {
  const total = one.stops.reduce((sum, row) => sum + row.episodes, 0);
  const shown = { run: one.run, source: "eval", step: one.step };
  return html`<section aria-labelledby="stops"><h2 id="stops">How episodes ended</h2>
    <div class="scroll"><table class="figures"><thead><tr><th>ended by</th><th class="num">episodes</th><th class="num">share</th><th class="num">solved</th></tr></thead>
      <tbody>${one.stops.map((row) => html`<tr key=${row.stop}><td><a href=${link("episodes", { ...shown, stop: row.stop })}>${harmless(row.stop.replaceAll("_", " "))}</a></td><td class="num">${figure(row.episodes)}</td><td class="num">${percent(row.episodes / Math.max(1, total))}</td><td class="num">${figure(row.successes)}</td></tr>`)}
      ${one.left_out.map((row) => html`<tr key=${row.why}><td><a href=${link("episode", { run: one.run, key: `eval-${one.step}-${row.n}` })}>${harmless(row.why)}</a> <span class="tag warn">left out</span> <span class="soft">${harmless(row.text.slice(0, 120))}</span></td><td class="num">${figure(row.episodes)}</td><td class="num">–</td><td class="num">–</td></tr>`)}</tbody></table></div></section>`;
}

function Extreme({ title, id, rows, one }) {
  return html`<section aria-labelledby=${id}><h2 id=${id}>${title}</h2>
    ${rows.length ? html`<div class="scroll"><table class="figures"><thead><tr><th>task</th><th class="num">level</th><th class="num">solved</th><th class="num">reward</th><th class="num">tokens</th></tr></thead>
      <tbody>${rows.map((task) => html`<tr key=${task.task}><td class="kind"><a href=${link("group", { run: one.run, source: "eval", step: one.step, group: task.task })}>${harmless(task.task_id)}</a></td><td class="num">${figure(task.difficulty)}</td><td class="num">${task.solved === null ? "–" : `${task.solved}/${task.counted}`}</td><td class="num">${fixed(task.reward)}</td><td class="num">${fixed(task.tokens, 1)}</td></tr>`)}</tbody></table></div>`
    : html`<p class="soft">none</p>`}</section>`;
}

/* Of equal tasks the one with the lower reward is worse, then the one that took more tokens. */
function extremes(tasks) {
  const known = byKey(byKey(tasks.filter((task) => task.value !== null), (task) => task.tokens, true), (task) => task.reward, false);
  const sorted = byKey(known, (task) => task.value, false);
  const [lowest, highest] = [sorted[0]?.value, sorted.at(-1)?.value];
  return {
    worst: sorted.filter((task) => task.value < highest || highest === 0).slice(0, EXTREMES),
    best: sorted.filter((task) => task.value > lowest || lowest === 1).slice(-EXTREMES).reverse(),
  };
}

function Curve({ run, dark, fresh }) {
  const { data } = useData(runPath(run.id, "/curves"), { again: fresh });
  const curves = (data?.curves ?? []).filter((curve) => CURVE.includes(curve.key) && curve.steps.length > 1);
  if (!curves.length) return null;
  return html`<section aria-labelledby="curve"><h2 id="curve">Checkpoints of ${harmless(run.name)}</h2>
    <div class="curves">${panelsOf(curves).map((panel) => html`<${Chart} ...${panel} key=${panel.key} marks=${data.changes} dark=${dark} />`)}</div></section>`;
}

export function EvaluationView({ id, params, dark }) {
  const [live, setLive] = useState(false);
  const [fresh] = useFresh(id, live);
  const { data: run, failure: unread } = useData(runPath(id), { again: fresh });
  const steps = run?.id === id ? run.evaluations.map((row) => row.step) : [];
  const step = params.step === undefined ? steps.at(-1) : Number(params.step);
  const { data: one, failure } = useData(step === undefined ? null : runPath(id, `/evaluations/${step}`), { again: fresh });
  const goesOn = run?.status === "running" || run?.evaluations.some((row) => !row.finished); // a run that is done may be measured
  useEffect(() => setLive(Boolean(goesOn)), [goesOn]);
  if (unread || failure) return html`<${Failed} failure=${unread ?? failure} />`;
  if (run?.id === id && !steps.length) return html`<h1>${harmless(run.name)}</h1><p class="empty" role="status">No episode has ended yet.</p>`;
  if (!run || run.id !== id || !one || one.run !== id) return html`<${Loading} what="Reading the evaluation" />`;
  const { worst, best } = extremes(one.tasks);
  /* One element around all, and around the list: Preact puts parts in another order where those of a fragment come and go. */
  return html`<div><${Head} one=${one} run=${run} steps=${steps} params=${params} />
    <${Measured} one=${one} />
    ${steps.length > 1 && html`<${Curve} run=${run} dark=${dark} fresh=${fresh} />`}
    <div>${one.by.map((kinds) => html`<${Shares} key=${kinds.name} ...${kinds} />`)}</div>
    <div class="panels">
      <${Means} id="rewards" title="Rewards" rows=${one.summary.rewards} />
      <${Means} id="measures" title="Measured by the environment" rows=${one.measures.map((row) => ({ ...row, mean: row.value }))} />
      <${Endings} one=${one} />
    </div>
    <div class="panels">
      ${one.tasks.length > 1 && html`<${Extreme} title="Worst tasks" id="worst" rows=${worst} one=${one} /><${Extreme} title="Best tasks" id="best" rows=${best} one=${one} />`}
    </div>
    <${Matrix} one=${one} params=${params} fresh=${fresh} />
    ${run.kind === "eval" && html`<div class="two"><${Settings} config=${run.config} /><${Events} run=${run} fresh=${fresh} /></div>`}</div>`;
}
