/* A run: whether it learns, its curves, where its time goes, what broke. */
import { html, useEffect, useState } from "../vendor/htm-preact.module.js";
import { Failed, Loading, Segmented, main, ofReward } from "../parts/bits.js";
import { Curves } from "../parts/curves.js";
import { Lanes } from "../parts/lanes.js";
import { Phases } from "../parts/phases.js";
import { Steering } from "../parts/steering.js";
import { ago, count, duration, figure, harmless, interval, plain, signed } from "../lib/format.js";
import { exported, query, runPath, useData } from "../lib/data.js";
import { useFresh } from "../lib/fresh.js";
import { amend, link } from "../lib/url.js";

const LANE_STEPS = 60;
const FIRST = "agentgym:first-view";

/* Where a finding of the diagnosis can be looked at: among the episodes, by the name of the finding. */
const EVIDENCE = {
  no_signal: { trained: "false" }, no_signal_right: { trained: "false", success: "true" }, no_signal_wrong: { trained: "false", success: "false" },
  truncation: { sort: "-tokens" }, length_explosion: { sort: "-tokens" }, length_collapse: { sort: "tokens" },
  infra_errors: { error: "any" }, invalid: { outcome: "invalid" }, staleness: { sort: "-staleness" }, rewards_do_not_pay: { sort: "-reward" },
};
const SEVERITY = { problem: "bad", warning: "warn", note: "" };

function opening(text) {
  return harmless(text[0].toUpperCase() + text.slice(1));
}

function Verdict({ run }) {
  const { verdict, sentence, problems, missing } = run.diagnosis;
  return html`<div class="verdict ${verdict}">
      <h1>${opening(sentence || missing || "nothing can be said yet.")}</h1>
      <p>
        <span class="dot ${run.status}"></span>${run.status}, step ${figure(run.step)}${run.steps ? ` of ${figure(run.steps)}` : ""}, ${duration(run.time?.wall_s)}; changed ${ago(run.changed)}${run.reason ? `. ${harmless(run.reason)}` : ""}
      </p>
      ${run.processes?.text && html`<p class=${run.processes.is_stuck ? "bad" : "soft"}>${opening(run.processes.text)}.</p>`}
    </div>
    ${problems.length > 0 && html`<ul class="findings" aria-label="What was found">${problems.map((one) => html`<${Finding} key=${one.kind} run=${run.id} one=${one} />`)}</ul>`}`;
}

function Finding({ run, one }) {
  return html`<li>
    <span class="tag ${SEVERITY[one.severity] ?? "warn"}">${one.kind.replaceAll("_", " ")}</span>
    <span>${opening(one.text)}${/[.!?]$/.test(one.text) ? "" : "."} <span class="soft">${harmless([one.meaning, one.advice ?? one.hint].filter(Boolean).join(" "))}</span>
      ${one.metrics?.length > 0 && html` <a href=${link("run", { run, more: one.metrics.join(",") })}>curves</a>`}
      ${EVIDENCE[one.kind] && html` <a href=${link("episodes", { run, ...EVIDENCE[one.kind] })}>episodes</a>`}</span>
  </li>`;
}

function Strip({ run }) {
  const last = run.evaluations.findLast((row) => row.finished);
  const gain = last?.difference ?? (run.gain ? { ...run.gain, to_step: run.first_step ?? 0 } : null);
  const cells = [
    last && [`held-out ${ofReward(last) ? "reward" : "success"}`, figure(main(last).mean), `${interval(main(last).low, main(last).high)} n = ${figure(last.tasks)} tasks, step ${figure(last.step)}`],
    gain && [`paired difference${gain.of === "reward" ? " of the reward" : ""}`, signed(gain.mean), `${interval(gain.low, gain.high)} n = ${figure(gain.n)} tasks, to step ${figure(gain.to_step)}`],
    ["success", "reward"].filter((name) => typeof run[name] === "number").slice(0, 1).map((name) => [`training ${name}`, figure(run[name]), "of the newest step"])[0],
    ["episodes", figure(run.episodes.count), `${figure(run.episodes.train.length)} steps, ${figure(run.episodes.eval.length)} evaluations`],
    ["environment", harmless(run.environment ?? "–"), harmless(run.model ?? "")],
  ];
  return html`<dl class="strip">
    ${cells.filter(Boolean).map(([name, value, more]) => html`<div><dt>${name}</dt><dd>${value} <small>${more}</small></dd></div>`)}
  </dl>`;
}

function Infra({ run }) {
  const { infra } = run;
  const clean = !infra.infra_errors && !infra.unsupported && !infra.prompt_too_long && !infra.retries;
  return html`<section aria-labelledby="infra">
    <div class="head"><h2 id="infra">Infrastructure errors</h2>
      <span class="soft">${figure(infra.infra_errors)} of ${count(infra.episodes, "episode")} left out, ${count(infra.retries, "retry", "retries")}${infra.unsupported ? `, ${figure(infra.unsupported)} unsupported` : ""}${infra.prompt_too_long ? `, ${figure(infra.prompt_too_long)} prompts too long` : ""}</span></div>
    ${infra.by_source.length > 0
      ? html`<div class="scroll"><table>
          <thead><tr><th>source</th><th>kind</th><th class="num">episodes</th><th>the first message</th><th>example</th></tr></thead>
          <tbody>${infra.by_source.map(
            (row) => html`<tr><td>${harmless(row.source)}</td><td>${harmless(row.kind)}</td><td class="num">${figure(row.count)}</td>
              <td class="clip" title=${harmless(row.message)}>${harmless(row.message)}</td>
              <td>${row.example && html`<a href=${link("episode", { run: run.id, key: row.example })}>${row.example}</a>`}</td></tr>`,
          )}</tbody></table></div>`
      : html`<p class="soft">${clean ? "Nothing broke." : "No episode records what broke."}</p>`}
  </section>`;
}

function Evaluations({ run }) {
  if (!run.evaluations.length) return null;
  return html`<section aria-labelledby="evaluations">
    <h2 id="evaluations">Evaluations</h2>
    <div class="scroll"><table class="narrow">
      <thead><tr><th class="num">step</th><th class="num">${run.evaluations.some(ofReward) ? "reward" : "success"}</th><th>95% interval</th><th class="num">tasks</th><th class="num">episodes</th><th class="num" title="ended by a limit of wall time, not counted">cut</th><th class="num">paired difference</th><th>95% interval</th><th class="num">better, worse</th><th>more</th></tr></thead>
      <tbody>${run.evaluations.map((row) => {
        const d = row.difference;
        return html`<tr key=${row.step}>
          <td class="num"><a href=${link("evaluation", { run: run.id, step: row.step })} aria-label=${`evaluation of step ${row.step}`}>${figure(row.step)}</a></td><td class="num">${figure(main(row).mean)}</td><td class="nowrap">${row.finished ? interval(main(row).low, main(row).high) : "not finished"}</td>
          <td class="num">${figure(row.tasks)}</td><td class="num">${figure(row.episodes)}</td><td class="num ${row.cut ? "bad" : ""}">${figure(row.cut ?? 0)}</td>
          <td class="num ${d?.clear ? (d.mean > 0 ? "good" : "bad") : ""}">${d ? signed(d.mean) : "–"}</td><td class="nowrap">${d ? interval(d.low, d.high) : ""}</td>
          <td class="num">${d ? `${figure(d.better)}, ${figure(d.worse)}` : ""}</td>
          <td><a href=${link("episodes", { run: run.id, source: "eval", step: row.step })} aria-label=${`episodes of the evaluation at step ${row.step}`}>episodes</a>
          ${d && html` · <a href=${link("compare", { run: run.id, a: `${run.id}@${d.to_step}`, b: `${run.id}@${row.step}` })} aria-label=${`compare step ${d.to_step} with step ${row.step}`}>compare</a>`}</td>
        </tr>`;
      })}</tbody></table></div>
  </section>`;
}

function Staleness({ run, params, fresh }) {
  const to = Number(params.lanes) || run.last_step || 0;
  const from = Math.max(1, to - LANE_STEPS + 1);
  const whole = (run.last_step ?? 0) <= LANE_STEPS;
  const { data } = useData(runPath(run.id, exported || whole ? "/lanes" : `/lanes${query({ from, to })}`), { again: fresh });
  const move = (by) => amend("run", { ...params, lanes: Math.min(run.last_step, Math.max(LANE_STEPS, to + by)) });
  return html`<section aria-labelledby="lanes">
    <div class="head spread"><h2 id="lanes">Staleness</h2>
      ${!whole && !exported && html`<span class="row"><button onClick=${() => move(-LANE_STEPS)} disabled=${from <= 1}>earlier</button><span class="soft">steps ${from} to ${to}</span><button onClick=${() => move(LANE_STEPS)} disabled=${to >= run.last_step}>later</button></span>`}</div>
    ${data && html`<${Lanes} run=${run.id} lanes=${data} />`}
  </section>`;
}

export function Settings({ config }) {
  const [all, setAll] = useState(false);
  const rows = Object.entries(config).filter(([, field]) => all || field.source);
  return html`<section aria-labelledby="settings">
    <div class="head"><h2 id="settings">Settings</h2>
      <${Segmented} label="Which settings" value=${all} onChange=${setAll} options=${[[false, "chosen"], [true, `all ${Object.keys(config).length}`]]} /></div>
    <div class="scroll"><table><thead><tr><th>field</th><th>value</th><th>from</th></tr></thead>
      <tbody>${rows.map(([key, field]) => html`<tr key=${key}><td title=${harmless(field.text)}><code>${harmless(key)}</code></td><td class="clip"><code>${harmless(plain(field.value) ?? "null")}</code></td><td class="soft">${harmless(field.source ?? "default")}</td></tr>`)}</tbody></table></div>
    ${!rows.length && html`<p class="soft">All settings are defaults.</p>`}
  </section>`;
}

export function Events({ run, fresh }) {
  const { data } = useData(runPath(run.id, "/events?tail=200"), { again: fresh });
  if (!data?.events.length) return null;
  return html`<section aria-labelledby="events"><h2 id="events">Events</h2>
    <div class="scroll"><table><thead><tr><th>time</th><th>what</th></tr></thead><tbody>${data.events.slice(-12).toReversed().map((row, i) => html`<tr key=${i}><td class="soft nowrap">${harmless(row.time.slice(0, 19).replace("T", " "))}</td><td>${harmless(row.text)}</td></tr>`)}</tbody></table></div>
  </section>`;
}

let marking = false;

/* The sentence and the first curve are on the screen, after the frame that has them: what a browser measures as the first view. */
function firstView() {
  if (marking) return;
  marking = true;
  requestAnimationFrame(() => setTimeout(() => performance.mark(FIRST)));
}

export function RunView({ id, params, dark }) {
  const [live, setLive] = useState(false);
  const [fresh, refresh] = useFresh(id, live);
  const { data: run, failure } = useData(runPath(id), { again: fresh });
  const { data: curves, failure: unread } = useData(runPath(id, "/curves"), { again: fresh });
  const [rest, setRest] = useState(false); // what is below the curves comes after they are drawn
  useEffect(() => setLive(run?.status === "running"), [run?.status]);
  const first = Boolean(run && (curves || unread));
  useEffect(() => {
    const later = first && setTimeout(() => setRest(true));
    return () => clearTimeout(later);
  }, [first]);
  if (!run || run.id !== id) return failure ? html`<${Failed} failure=${failure} />` : html`<${Loading} what="Reading the run" />`;
  return html`<${Failed} failure=${failure} />
    <${Verdict} run=${run} />
    <${Strip} run=${run} />
    <${Steering} run=${run} onDone=${refresh} />
    ${curves && html`<${Curves} run=${id} curves=${curves} params=${params} dark=${dark} fresh=${fresh} onDrawn=${firstView} />`}
    ${rest && html`<${Below} run=${run} params=${params} fresh=${fresh} />`}`;
}

function Below({ run, params, fresh }) {
  const { data: time } = useData(runPath(run.id, "/time"), { again: fresh });
  return html`<${Evaluations} run=${run} />
    <div class="two">
      <section aria-labelledby="phases"><h2 id="phases">Where the time goes</h2><${Phases} shares=${run.time_shares} busy=${run.busy_share} time=${time} /></section>
      <${Infra} run=${run} />
    </div>
    <${Staleness} run=${run} params=${params} fresh=${fresh} />
    <div class="two"><${Settings} config=${run.config} /><${Events} run=${run} fresh=${fresh} /></div>`;
}
